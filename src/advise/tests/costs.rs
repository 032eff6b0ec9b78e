use super::*;
use crate::advise::costs::{MonthlyCost, WorkloadCost};

const GI: Amount = 1 << 30;

/// A container of this workload, with two pods.
fn of(workload: &str, cpu: (Current, Option<Amount>), memory: (Current, Option<Amount>)) -> ContainerAdvice {
    ContainerAdvice { workload: workload.into(), ..advice("app", cpu, memory) }
}

#[test]
fn a_cost_is_that_of_all_pods_and_a_request_without_advice_stays() {
    let cost = |cpu, memory| prices().of_container(&of("web", cpu, memory));
    let both = cost((Current::Set(2_000), Some(500)), (Current::Set(4 * GI), None));
    assert_eq!(both, Some(MonthlyCost { current: 2.0 * 50.0, advised: 2.0 * 20.0 }));
    let unset = cost((Current::Unset, Some(500)), (Current::Set(GI), Some(GI)));
    assert_eq!(unset, Some(MonthlyCost { current: 5.0, advised: 25.0 }));
}

#[test]
fn what_an_unknown_request_costs_is_unknown_and_no_saving() {
    let unknown = of("web", (Current::Unknown, Some(500)), (Current::Unknown, Some(GI)));
    let half = of("db", (Current::Unknown, Some(500)), (Current::Set(GI), Some(2 * GI)));
    assert_eq!(prices().of_container(&unknown), None);
    assert_eq!(prices().of_container(&half), Some(MonthlyCost { current: 5.0, advised: 10.0 }));
    assert_eq!(prices().of_all(&[unknown, half]), MonthlyCost { current: 5.0, advised: 10.0 });
}

#[test]
fn a_namespace_may_have_its_own_prices() {
    let own = PriceList { namespaces: [("shop".into(), Prices { core: 1.0, gib: 0.0 })].into(), ..prices() };
    let web = of("web", (Current::Set(2_000), Some(1_000)), (Current::Set(GI), Some(GI)));
    let other = ContainerAdvice { namespace: "bank".into(), ..web.clone() };
    assert_eq!(own.of_container(&web), Some(MonthlyCost { current: 4.0, advised: 2.0 }));
    assert_eq!(own.of_container(&other), prices().of_container(&other));
}

#[test]
fn workloads_are_the_sums_of_their_containers_and_the_largest_saving_is_first() {
    let memory = (Current::Set(GI), Some(GI));
    let all = [
        of("lacks", (Current::Set(1_000), Some(4_000)), memory),
        of("saves", (Current::Set(4_000), Some(1_000)), memory),
        of("two", (Current::Set(3_000), Some(1_000)), memory),
        of("two", (Current::Set(3_000), Some(1_000)), memory),
    ];
    let costs = prices().of_workloads(&all);
    let named = |cost: &WorkloadCost<'_>| (cost.workload.to_owned(), cost.monthly_cost.saved());
    let named: Vec<_> = costs.iter().map(named).collect();
    assert_eq!(named, [("two".into(), 160.0), ("saves".into(), 120.0), ("lacks".into(), -120.0)]);
}
