use std::cmp::Reverse;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::policy::StatusReason;
use crate::queue::{AGED_TURN, Place};
use berth_model::{Amounts, Holding, Labels, Usage};

fn usage(cpu_milli: i64, gpus: i64) -> Arc<Usage> {
    Arc::new(Usage {
        requests: Amounts { cpu_milli, pods: 1, ..Amounts::default() },
        extended: [(Arc::from("x/gpu"), gpus)].into_iter().collect(),
        ..Usage::default()
    })
}

fn limit(amounts: &[(&str, i64)]) -> Limit {
    amounts.iter().map(|(name, amount)| (QuotaResource::of(name), *amount)).collect()
}

fn quota(name: &str, created: i64, scope: Scope) -> Quota {
    let limits = Limits { guaranteed: Limit::default(), maximum: limit(&[("cpu", 1000)]) };
    let (name, uid) = (Arc::from(name), Arc::from(name));
    Quota { name, uid, generation: 1, created, scope, reclaim: Reclaim::Any, limits: Ok(limits) }
}

fn scope(queue: Option<&str>, namespaces: &[&str]) -> Scope {
    let namespaces = match namespaces {
        [] => SelectedNamespaces::All,
        names => SelectedNamespaces::Named(names.iter().map(|name| Arc::from(*name)).collect()),
    };
    Scope { queue: queue.map(Arc::from), namespaces }
}

fn pod(namespace: &str, queue: Option<&str>) -> Identity {
    let labels = queue.into_iter().map(|queue| (QUEUE_LABEL, queue)).collect();
    Identity { namespace: namespace.into(), labels, namespace_labels: Labels::default() }
}

fn of(quota: &str, usage: Arc<Usage>) -> Holding {
    Holding { usage, quota: Some(quota.into()), ..Holding::default() }
}

#[test]
fn a_pod_falls_to_a_queue_of_its_namespace_then_to_its_namespace_then_to_an_open_queue_and_to_the_older_of_two_alike()
 {
    let mut index = Index::default();
    for (name, created, scope) in [
        ("rest", 0, scope(None, &[])),
        ("young", 2, scope(None, &["a", "b"])),
        ("old", 1, scope(None, &["b"])),
        ("night", 3, scope(Some("night"), &[])),
        ("night-of-b", 4, scope(Some("night"), &["b"])),
    ] {
        assert_eq!(index.apply(quota(name, created, scope)), QuotaChange::Pods);
    }
    let find = |namespace, queue| index.find(&pod(namespace, queue)).map(|name| &**name);
    assert_eq!(find("a", None), Some("young"));
    assert_eq!(find("b", None), Some("old"));
    assert_eq!(find("c", None), Some("rest"));
    assert_eq!(
        find("a", Some("night")),
        Some("young"),
        "a label takes no pod out of the quota of its namespace"
    );
    assert_eq!(find("b", Some("night")), Some("night-of-b"));
    assert_eq!(find("c", Some("night")), Some("night"));
    assert_eq!(find("a", Some("unknown")), Some("young"));
}

#[test]
fn an_open_queue_reclaims_only_from_less_important_pods() {
    let open = quota("open", 1, scope(Some("x"), &[]));
    let closed = quota("closed", 1, scope(Some("x"), &["a"]));
    assert_eq!((open.reclaims(), closed.reclaims()), (Reclaim::LowerPriority, Reclaim::Any));
    let never = Quota { reclaim: Reclaim::Never, ..open };
    assert_eq!(never.reclaims(), Reclaim::Never);
}

#[test]
fn a_change_says_whether_pods_move_and_an_invalid_quota_has_none() {
    let mut index = Index::default();
    let first = quota("q", 1, scope(None, &["a"]));
    assert_eq!(index.apply(first.clone()), QuotaChange::Pods);
    assert_eq!(index.apply(first.clone()), QuotaChange::Nothing);
    let limits = Ok(Limits { maximum: limit(&[("cpu", 1)]), ..Limits::default() });
    assert_eq!(index.apply(Quota { generation: 2, limits, ..first.clone() }), QuotaChange::Limits);
    assert_eq!(index.apply(Quota { limits: Err("bad".into()), ..first }), QuotaChange::Pods);
    assert_eq!(index.find(&pod("a", None)), None);
    let again = quota("again", 1, scope(None, &["b"]));
    assert_eq!(index.apply(again.clone()), QuotaChange::Pods);
    assert_eq!(index.apply(Quota { created: 2, ..again }), QuotaChange::Pods, "another may be older now");
    assert_eq!((index.delete("q"), index.delete("q")), (QuotaChange::Limits, QuotaChange::Nothing));
}

#[test]
fn shortages_are_reported_with_their_amounts() {
    let mut account = Account::default();
    account.used.charge(&usage(800, 1));
    let maximum = limit(&[("cpu", 1000), ("x/gpu", 1)]);
    let text = |cpu, gpus| {
        let wanted = usage(cpu, gpus);
        let lack = account.lacks_for(&maximum, &wanted);
        assert_eq!(lack, account.lacks(&maximum, &Sums::from(&*wanted)));
        lack.map(|lack| lack.message("q"))
    };
    assert_eq!(text(200, 0), None);
    assert_eq!(text(300, 0).as_deref(), Some("quota q: requested cpu=300m, used cpu=800m, maximum cpu=1"));
    assert_eq!(text(100, 1).as_deref(), Some("quota q: requested x/gpu=1, used x/gpu=1, maximum x/gpu=1"));
    let never = "quota q: requested cpu=2 exceeds the maximum cpu=1";
    assert_eq!(text(2000, 0).as_deref(), Some(never));
}

#[test]
fn amounts_are_written_as_kubernetes_does() {
    let show = |name: &str, amount| QuotaResource::of(name).show(amount);
    assert_eq!([show("cpu", 1500), show("cpu", 2000), show("cpu", 0)], ["1500m", "2", "0"]);
    assert_eq!(
        [show("memory", 3 << 29), show("memory", 1 << 40), show("memory", 1001)],
        ["1536Mi", "1Ti", "1001"]
    );
    assert_eq!([show("hugepages-2Mi", 4 << 20), show("x/gpu", 4096)], ["4Mi", "4096"]);
}

#[test]
fn amounts_are_measured_in_cores_bytes_and_counts() {
    let base = |name: &str, amount| QuotaResource::of(name).base(amount);
    assert_eq!([base("cpu", 1500), base("memory", 1500), base("x/gpu", 2)], [1.5, 1500.0, 2.0]);
}

// Lines.

fn join(lines: &mut QuotaLines, name: &str, cpu: i64, gpus: i64, place: Place) {
    lines.join(&"q".into(), &name.into(), Sums::from(&*usage(cpu, gpus)), place);
}

fn release(lines: &mut QuotaLines, maximum: &Limit, used_cpu: i64, used_gpus: i64) -> Vec<String> {
    let mut account = Account::default();
    account.used.charge(&usage(used_cpu, used_gpus));
    lines.release("q", maximum, &account).iter().map(|key| key.to_string()).collect()
}

fn place(priority: i32, seq: u64) -> Place {
    (Reverse(priority), seq)
}

#[test]
fn a_quota_queue_is_first_in_first_out_and_a_large_pod_is_not_overtaken() {
    let mut lines = QuotaLines::default();
    join(&mut lines, "large", 800, 0, place(0, 1));
    join(&mut lines, "small", 100, 0, place(0, 2));
    join(&mut lines, "urgent", 100, 0, place(5, 3));
    let maximum = limit(&[("cpu", 1000)]);
    assert_eq!(release(&mut lines, &maximum, 850, 0), ["urgent"]);
    // 250 are free, but the large entry is first.
    assert_eq!(release(&mut lines, &maximum, 750, 0), [""; 0]);
    assert_eq!(release(&mut lines, &maximum, 100, 0), ["large", "small"]);
    assert!(lines.is_empty() && lines.quotas().next().is_none());
}

#[test]
fn an_entry_is_before_those_with_a_worse_place_and_not_before_itself() {
    let mut lines = QuotaLines::default();
    join(&mut lines, "a", 100, 0, place(0, 5));
    let before = [place(0, 4), place(0, 5), place(0, 6), place(1, 6), place(-1, 4)];
    assert_eq!(before.map(|place| lines.is_before("q", place)), [false, false, true, false, true]);
}

#[test]
fn pods_waiting_for_devices_do_not_block_pods_without() {
    let mut lines = QuotaLines::default();
    join(&mut lines, "gpu", 100, 1, place(0, 1));
    join(&mut lines, "plain", 100, 0, place(0, 2));
    let maximum = limit(&[("cpu", 1000), ("x/gpu", 4)]);
    assert_eq!(release(&mut lines, &maximum, 0, 4), ["plain"]);
    assert_eq!(release(&mut lines, &maximum, 0, 3), ["gpu"]);
}

#[test]
fn a_pod_that_never_fits_its_quota_blocks_no_other_pods() {
    let mut lines = QuotaLines::default();
    join(&mut lines, "huge", 1001, 0, place(9, 1));
    join(&mut lines, "fits", 1000, 0, place(0, 2));
    assert_eq!(release(&mut lines, &limit(&[("cpu", 1000)]), 0, 0), ["fits"]);
    assert_eq!(release(&mut lines, &Limit::default(), 0, 0), ["huge"], "without a maximum all fit");
}

#[test]
fn every_sixteenth_turn_goes_to_the_longest_waiting_request() {
    let mut lines = QuotaLines::default();
    join(&mut lines, "low", 100, 0, place(0, 0));
    let maximum = limit(&[("cpu", 1000)]);
    for turn in 1..=AGED_TURN {
        for more in 0..2 {
            join(&mut lines, &format!("high-{turn}-{more}"), 100, 0, place(5, turn * 2 + more));
        }
        let released = release(&mut lines, &maximum, 900, 0);
        assert_eq!(released == ["low"], turn == AGED_TURN, "turn {turn}: {released:?}");
    }
}

#[test]
fn the_longest_keeps_its_room_until_it_is_enough() {
    let mut lines = QuotaLines::default();
    join(&mut lines, "low", 800, 0, place(0, 0));
    let maximum = limit(&[("cpu", 1000)]);
    let mut highs = 0;
    let mut more = |lines: &mut QuotaLines| {
        highs += 1;
        join(lines, &format!("high-{highs}"), 100, 0, place(5, highs));
    };
    for _ in 1..AGED_TURN {
        more(&mut lines);
        more(&mut lines);
        assert_eq!(release(&mut lines, &maximum, 900, 0).len(), 1);
    }
    for used in [900, 700, 300] {
        assert_eq!(release(&mut lines, &maximum, used, 0), [""; 0], "capacity is reserved");
    }
    assert_eq!(release(&mut lines, &maximum, 200, 0), ["low"]);
}

proptest! {
    #[test]
    fn releases_never_exceed_the_maximum_or_lose_a_pod(
        pods in prop::collection::vec((0i64..5, 0i64..3, -1i32..2), 0..60),
        rooms in prop::collection::vec((0i64..8, 0i64..4), 1..20),
    ) {
        let mut lines = QuotaLines::default();
        let mut waiting = BTreeSet::new();
        for (at, (cpu, gpus, priority)) in pods.iter().enumerate() {
            join(&mut lines, &at.to_string(), *cpu, *gpus, place(*priority, at as u64));
            waiting.insert(at);
        }
        for (cpu, gpus) in rooms {
            let maximum = limit(&[("cpu", cpu), ("x/gpu", gpus)]);
            let (mut cpus, mut devices) = (0, 0);
            for key in release(&mut lines, &maximum, 0, 0) {
                let at: usize = key.parse().unwrap();
                prop_assert!(waiting.remove(&at), "{at} was released twice");
                (cpus, devices) = (cpus + pods[at].0, devices + pods[at].1);
            }
            prop_assert!(cpus <= cpu && devices <= gpus);
            // In slices of two.
            let (mut walked, mut last) = (BTreeSet::new(), None);
            loop {
                let slice = lines.after(last.as_ref(), 2);
                let Some((quota, wanted, place, _)) = slice.last().cloned() else { break };
                last = Some((quota, wanted, place));
                walked.extend(slice.iter().map(|(_, _, _, key)| key.parse::<usize>().unwrap()));
            }
            prop_assert_eq!(&walked, &waiting);
            prop_assert_eq!(lines.len(), waiting.len());
            prop_assert_eq!(lines.waiting("q"), waiting.len());
            // The first possible entry could use the whole maximum.
            let possible = waiting.iter().filter(|at| pods[**at].0 <= cpu && pods[**at].1 <= gpus);
            if cpus == 0 && devices == 0 {
                prop_assert!(possible.clone().all(|at| pods[*at].0 > 0 || pods[*at].1 > 0), "only empty requests are possible");
                prop_assert_eq!(possible.count(), 0);
            }
        }
        for at in &waiting {
            prop_assert!(lines.leave(&at.to_string()));
        }
        prop_assert!(lines.is_empty());
        prop_assert_eq!(lines.quotas().count(), 0);
    }

    #[test]
    fn accounts_are_what_a_recount_gives(events in prop::collection::vec((any::<bool>(), 0u8..3, 0i64..5, 0i64..2), 0..80)) {
        let (mut accounts, mut pods) = (Accounts::default(), Vec::new());
        for (comes, name, cpu, gpus) in events {
            if comes || pods.is_empty() {
                let holding = of(&format!("q{name}"), usage(cpu, gpus));
                accounts.charge(&holding);
                pods.push(holding);
            } else {
                accounts.discharge(&pods.swap_remove(cpu as usize % pods.len()));
            }
            let mut fresh = Accounts::default();
            pods.iter().for_each(|holding| fresh.charge(holding));
            prop_assert_eq!(&fresh, &accounts);
        }
    }
}

// Guarantees.

fn guarantee(cpu: i64, used: i64) -> (Arc<Quota>, Account) {
    let limits = Ok(Limits { guaranteed: limit(&[("cpu", cpu)]), maximum: Limit::default() });
    let quota = Quota { limits, ..quota("other", 1, scope(None, &["b"])) };
    let mut account = Account { pods: 9, ..Account::default() };
    account.used.charge(&usage(used, 0));
    (Arc::new(quota), account)
}

fn claims(rights: &Rights, lower: &[bool], cpu: i64, used: i64) -> Vec<VictimClaim> {
    let mut toll = Toll::default();
    let victim = of("other", usage(100, 0));
    lower
        .iter()
        .map(|lower| rights.claim(&mut toll, &victim, *lower, false, |_| Some(guarantee(cpu, used))))
        .collect()
}

fn rights(within: bool, reclaim: Reclaim) -> Rights {
    let lenders = if within && reclaim == Reclaim::Any { vec![Arc::from("other")] } else { Vec::new() };
    Rights { quota: Some("mine".into()), within, reclaim, lenders }
}

#[test]
fn within_its_guarantee_a_pod_takes_back_what_is_lent_and_not_one_pod_more() {
    let any = rights(true, Reclaim::Any);
    assert_eq!(claims(&any, &[false; 3], 100, 300), [VictimClaim::Lent, VictimClaim::Lent, VictimClaim::No]);
    assert_eq!(
        claims(&any, &[false; 2], 150, 300),
        [VictimClaim::Lent, VictimClaim::No],
        "not half a pod more either"
    );
    let lower = rights(true, Reclaim::LowerPriority);
    assert_eq!(claims(&lower, &[true, false], 100, 300), [VictimClaim::Lower, VictimClaim::No]);
    let never = rights(true, Reclaim::Never);
    assert_eq!(claims(&never, &[true, false], 100, 300), [VictimClaim::No, VictimClaim::No]);
}

#[test]
fn guaranteed_usage_is_never_preempted_by_pods_beyond_their_guarantee() {
    let beyond = rights(false, Reclaim::Any);
    assert_eq!(claims(&beyond, &[true; 3], 200, 300), [VictimClaim::Lower, VictimClaim::No, VictimClaim::No]);
    assert_eq!(claims(&beyond, &[false; 2], 0, 300), [VictimClaim::No, VictimClaim::No]);
    // Without a quota, and within its own quota, only priorities decide.
    assert_eq!(claims(&Rights::default(), &[true, false], 300, 300), [VictimClaim::Lower, VictimClaim::No]);
    assert_eq!(
        claims(&rights(true, Reclaim::Any), &[true, false], 300, 300),
        [VictimClaim::Lower, VictimClaim::No]
    );
}

#[test]
fn within_one_quota_only_priorities_count() {
    let mine = Rights { quota: Some("other".into()), ..rights(true, Reclaim::Any) };
    assert_eq!(claims(&mine, &[true, false], 100, 300), [VictimClaim::Lower, VictimClaim::No]);
}

#[test]
fn a_guarantee_is_judged_by_the_resources_that_it_names() {
    let limits = Limits { guaranteed: limit(&[("x/gpu", 2)]), maximum: Limit::default() };
    let mut account = Account::default();
    account.used.charge(&usage(5000, 1));
    assert!(account.guarantees(&limits, &usage(1 << 40, 1)));
    assert!(!account.guarantees(&limits, &usage(1, 2)));
    assert!(!account.guarantees(&limits, &usage(1, 0)), "no device, no guarantee");
    assert!(account.covers(&limits, &usage(1, 1)));
    assert!(!account.covers(&limits, &usage(1, 0)));
    let nothing = Limits::default();
    assert!(!account.guarantees(&nothing, &usage(1, 1)) && !account.covers(&nothing, &usage(1, 1)));
    assert_eq!(account.borrowed(&limits), Sums::default());
    assert_eq!(account.borrowed(&nothing), account.used, "without a guarantee all is borrowed");
}

#[test]
fn a_quota_borrows_beyond_its_guarantee_and_without_one_from_its_first_pod_on() {
    let borrows = |guaranteed, used| {
        let (quota, account) = guarantee(guaranteed, used);
        account.borrows(quota.valid().expect("it is valid"))
    };
    assert_eq!([borrows(300, 299), borrows(300, 300), borrows(300, 301)], [false, false, true]);
    let with = |pods| Account { pods, ..Account::default() }.borrows(&Limits::default());
    assert_eq!([with(0), with(1)], [false, true]);
}

#[test]
fn a_pod_that_leaves_anyway_counts_against_no_guarantee() {
    let claim = |rights: &Rights, lower| {
        let victim = of("other", usage(100, 0));
        rights.claim(&mut Toll::default(), &victim, lower, true, |_| Some(guarantee(300, 300)))
    };
    assert_eq!(claim(&rights(true, Reclaim::Any), false), VictimClaim::Lent);
    let beyond = rights(false, Reclaim::Any);
    assert_eq!([claim(&beyond, true), claim(&beyond, false)], [VictimClaim::Lower, VictimClaim::No]);
}

/// Two quotas that each need what the other has: the one that lost a pod must not be able to reclaim it.
#[test]
fn nothing_is_taken_back_and_forth() {
    for (guaranteed, used, size) in [(100, 300, 100), (150, 300, 100), (0, 70, 70), (99, 100, 1)] {
        let (quota, mut account) = guarantee(guaranteed, used);
        let limits = quota.valid().unwrap();
        let pod = usage(size, 0);
        while !account.covers(limits, &pod) && account.used.get(&QuotaResource::Cpu) > 0 {
            account.used.discharge(&pod);
            assert!(!account.guarantees(limits, &pod), "{guaranteed} {used} {size}");
        }
    }
}

#[test]
fn statuses_name_contested_quotas_and_all_shortfalls() {
    let mut index = Index::default();
    let guaranteed = |quota: Quota, cpu| Quota {
        limits: Ok(Limits { guaranteed: limit(&[("cpu", cpu)]), maximum: Limit::default() }),
        ..quota
    };
    index.apply(guaranteed(quota("first", 1, scope(None, &["a", "b"])), 1000));
    index.apply(guaranteed(quota("second", 2, scope(None, &["b", "c"])), 1500));
    index.apply(quota("third", 3, scope(None, &["a"])));
    index.apply(quota("queue", 4, scope(Some("x"), &["a"])));
    let mut cluster = Sums::default();
    cluster.change(QuotaResource::Cpu, 2000);
    let all =
        statuses(&index, &Accounts::default(), &QuotaLines::default(), &Default::default(), &[], &cluster);
    let by_name = |name: &str| all.iter().find(|status| &*status.name == name).unwrap();
    assert_eq!(by_name("first").contested, None);
    assert_eq!(by_name("queue").contested, None);
    let why =
        "quota first takes precedence for namespace b: it is equally specific, and older or first by name";
    assert_eq!(by_name("second").contested.as_deref(), Some(why));
    assert_eq!(
        (by_name("second").reason, by_name("third").reason),
        (StatusReason::Applied, StatusReason::Overruled)
    );
    let short = "the guarantees of all quotas exceed the allocatable resources of all nodes: cpu 2500m of 2";
    assert_eq!(by_name("second").shortfall.as_ref().map(|it| &*it.0), Some(short));
    assert_eq!(by_name("queue").shortfall, None, "it has no guarantee");
    cluster.change(QuotaResource::Cpu, 500);
    let enough =
        statuses(&index, &Accounts::default(), &QuotaLines::default(), &Default::default(), &[], &cluster);
    assert!(enough.iter().all(|status| status.shortfall.is_none()), "it has exactly what is guaranteed");
    assert_eq!(&*by_name("queue").message, "applies to pods of queue x of namespace a");
}
