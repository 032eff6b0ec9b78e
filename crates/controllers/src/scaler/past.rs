//! The past of services that are new here, or had no samples for an hour: what Prometheus knows of their usage, so that nothing has to
//! be observed for a day first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::settle::Remembered;
use crate::clock::Clock;
use berth_kube_io::scaling::ScaledService;
use berth_model::ConfigDuration;
use berth_prometheus::{Fact, PrometheusConfig, PrometheusSource, QueriedNamespaces, ServiceName};
use berth_rightsizing::scaling::PastUsage;
use berth_rightsizing::usage::UsageKind;
use berth_telemetry::ScalerMetrics;

/// Time between two points: spans of observation have gaps of an hour at most.
const RESOLUTION: ConfigDuration = ConfigDuration::from_secs(3_600);
/// More than a span that a service may ask for.
const LENGTH_MAX_S: i64 = 15 * 86_400;
/// Maximum duration of a read, and time until the next one after a failure.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// By container.
type PastOfService = BTreeMap<String, PastUsage>;
/// By uid of the ServiceScaler.
type PastOfServices = BTreeMap<String, PastOfService>;

/// Reads the past of new services in the background, of all of them at once.
pub(super) struct PastReads {
    config: PrometheusConfig,
    clock: Clock,
    metrics: Arc<ScalerMetrics>,
    /// The one in flight. Aborted when dropped.
    read: JoinSet<Result<PastOfServices, String>>,
    not_before_s: i64,
    found: PastOfServices,
}

/// A service whose past is unknown.
struct NewService {
    uid: String,
    namespace: Arc<str>,
    kind: String,
    name: String,
}

impl PastReads {
    pub fn new(config: PrometheusConfig, clock: Clock, metrics: Arc<ScalerMetrics>) -> PastReads {
        PastReads {
            config,
            clock,
            metrics,
            read: JoinSet::new(),
            not_before_s: i64::MIN,
            found: PastOfServices::new(),
        }
    }

    /// Takes over a read that has ended, and starts one of the services whose past is not known yet.
    pub fn go_on(
        &mut self,
        services: &[ScaledService],
        remembered: &BTreeMap<String, Remembered>,
        now: Timestamp,
    ) {
        if let Some(ended) = self.read.try_join_next() {
            match ended.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(found) => self.found.extend(found),
                Err(error) => {
                    tracing::warn!(%error, "scaler: the past of new services is unknown: they shrink when they were observed for long enough");
                    self.not_before_s = now.as_second().saturating_add(READ_TIMEOUT.as_secs() as i64);
                }
            }
        }
        let uids: BTreeSet<&str> = services.iter().map(|service| &*service.uid).collect();
        self.found.retain(|uid, _| uids.contains(&**uid));
        if !self.read.is_empty() || now.as_second() < self.not_before_s {
            return;
        }
        let (mut new, mut length_s) = (Vec::new(), 0);
        for service in services {
            let Ok(plan) = &service.plan else { continue };
            let is_known = || match remembered.get(&service.uid) {
                Some(remembered) => remembered.past_known,
                None => Remembered::of(service).past_known,
            };
            if !self.found.contains_key(&service.uid) && !is_known() {
                let spans = plan.settings.containers.values().chain([&plan.settings.vertical]);
                length_s = spans.map(|vertical| vertical.history_s).fold(length_s, i64::max);
                new.push(NewService::of(service));
            }
        }
        if new.is_empty() {
            return;
        }
        let (config, metrics) = (config_for(&self.config, length_s), self.metrics.clone());
        let clock = self.clock.clone();
        self.read.spawn(async move {
            let began = Instant::now();
            let read = timeout(READ_TIMEOUT, read(config, new, &clock)).await;
            let read =
                read.unwrap_or_else(|_| Err(format!("Prometheus did not answer within {READ_TIMEOUT:?}")));
            metrics.read("past", read.is_ok(), began.elapsed());
            read
        });
    }

    /// Returns the past of a service once it is known; empty if Prometheus knows nothing of it.
    pub fn take(&mut self, uid: &str) -> Option<PastOfService> {
        self.found.remove(uid)
    }
}

impl NewService {
    fn of(service: &ScaledService) -> NewService {
        NewService {
            uid: service.uid.clone(),
            namespace: service.namespace.clone(),
            kind: service.target.kind.clone(),
            name: service.target.name.clone(),
        }
    }
}

/// Returns the configuration of a read that goes back a little further than this.
fn config_for(config: &PrometheusConfig, length_s: i64) -> PrometheusConfig {
    let step = RESOLUTION.get().as_secs();
    let hours = length_s.clamp(0, LENGTH_MAX_S).unsigned_abs().div_ceil(step) + 1;
    PrometheusConfig {
        history_length: ConfigDuration::from_secs(hours * step),
        history_resolution: RESOLUTION,
        slice: config.slice.max(RESOLUTION),
        memory_peaks: true,
        ..config.clone()
    }
}

async fn read(
    config: PrometheusConfig,
    new: Vec<NewService>,
    clock: &Clock,
) -> Result<PastOfServices, String> {
    let source = PrometheusSource::new(config).map_err(|error| error.to_string())?;
    clock.follow(&source).await?;
    let now = clock.now();
    let mut found: PastOfServices = new.iter().map(|it| (it.uid.clone(), PastOfService::new())).collect();
    let namespaces: BTreeSet<&str> = new.iter().map(|it| &*it.namespace).collect();
    let namespaces: Vec<String> = namespaces.into_iter().map(str::to_owned).collect();
    let owners = Owners::new(&new);
    let these = QueriedNamespaces::These(&namespaces);
    let past = source.history(these, now, |kind, series| {
        for uid in owners.of(series.namespace, series.pod) {
            let Some(past) = found.get_mut(uid) else { continue };
            let past = past.entry(series.container.to_owned()).or_default();
            for sample in series.samples {
                let at = sample.at as i64;
                match kind {
                    UsageKind::Cpu => drop(past.cpu.insert(at)),
                    UsageKind::Memory => {
                        let highest = past.memory.entry(at).or_default();
                        *highest = (*highest).max(sample.value as i64);
                    }
                }
            }
        }
    });
    past.await.map_err(|error| error.to_string())?;
    let kills = source.facts(Fact::OomKill, these, now, |kill| {
        for uid in owners.of(kill.namespace, kill.object) {
            if let Some(past) = found.get_mut(uid).and_then(|past| past.get_mut(kill.about)) {
                past.killed = true;
            }
        }
    });
    kills.await.map_err(|error| error.to_string())?;
    Ok(found)
}

/// New services by namespace and name of their workload.
struct Owners<'a>(HashMap<(&'a str, &'a str), Vec<&'a NewService>>);

impl<'a> Owners<'a> {
    fn new(new: &'a [NewService]) -> Self {
        let mut owners: HashMap<_, Vec<_>> = HashMap::new();
        for service in new {
            owners.entry((&*service.namespace, service.name.as_str())).or_default().push(service);
        }
        Owners(owners)
    }

    /// Returns the uids of the services of a pod, which may not exist any more: by its name.
    fn of<'b>(&'b self, namespace: &'b str, pod: &'b str) -> impl Iterator<Item = &'b str> {
        let one_part_less = |name: &'b str| name.rsplit_once('-').map(|(owner, _)| owner);
        let names = std::iter::successors(one_part_less(pod), move |name| one_part_less(name)).take(2);
        let services = names.filter_map(move |name| self.0.get(&(namespace, name))).flatten();
        let is_its = move |service: &&&NewService| {
            let NewService { namespace, kind, name, .. } = **service;
            ServiceName { namespace, kind, name }.has_pod(pod)
        };
        services.filter(is_its).map(|service| service.uid.as_str())
    }
}

#[cfg(test)]
mod tests {
    use berth_test_support::prometheus::{
        Fake, RecordedRequest, error, install_provider, matrix, scalar, vector,
    };

    use super::*;
    use crate::clock::Still;

    const NOW_S: i64 = 1_700_000_000;
    const MI: i64 = 1 << 20;

    fn service(name: &str) -> ScaledService {
        let object = serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
            "metadata": {"namespace": "shop", "name": name, "uid": name},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
        });
        ScaledService::read(&object.to_string()).expect("a ServiceScaler")
    }

    /// Usage of pods of `web`, some of which are gone, and of `web-api`. One was killed.
    fn answer(asked: &RecordedRequest) -> String {
        let series = |pod: &str, values: &str| {
            let labels = format!(r#"{{"namespace":"shop","pod":"{pod}","container":"app"}}"#);
            format!(r#"{{"metric":{labels},{values}}}"#)
        };
        if asked.is_time() {
            return scalar(NOW_S);
        }
        if asked.query().contains("last_terminated_reason") {
            return vector(&series("web-7d9f8b6c5d-x2k4p", &format!(r#""value":[{NOW_S},"1"]"#)));
        }
        if !asked.path.ends_with("query_range") {
            return asked.answer();
        }
        let of = |pod: &str, value: i64| {
            let values = asked.times().into_iter().map(|at| format!(r#"[{at},"{value}"]"#));
            series(pod, &format!(r#""values":[{}]"#, values.collect::<Vec<_>>().join(",")))
        };
        let all = [
            of("web-7d9f8b6c5d-x2k4p", 200 * MI),
            of("web-55c8f9d7b4-abcde", 300 * MI),
            of("web-api-7d9f8b6c5d-x2k4p", MI),
        ];
        matrix(&all.join(","))
    }

    async fn await_read(reads: &mut PastReads, services: &[ScaledService], now_s: i64) {
        for _ in 0..1_000 {
            reads.go_on(services, &BTreeMap::new(), Timestamp::from_second(now_s).unwrap());
            if reads.read.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the read does not end");
    }

    fn reads(url: &str) -> PastReads {
        install_provider();
        PastReads::new(
            PrometheusConfig { url: url.to_owned(), ..PrometheusConfig::default() },
            Clock::new(Still(NOW_S, Arc::default())),
            Arc::default(),
        )
    }

    #[tokio::test]
    async fn the_past_of_a_new_service_is_that_of_all_its_pods_and_is_read_once() {
        let fake = Fake::start(|_, asked| answer(asked)).await;
        let (mut reads, services) = (reads(&fake.url), [service("web"), service("cart")]);
        await_read(&mut reads, &services, NOW_S).await;
        let web = reads.take("web").expect("it is known");
        let app = &web["app"];
        let times: Vec<i64> = (0..=25).rev().map(|hour| NOW_S - hour * 3_600).collect();
        assert_eq!(app.cpu.iter().copied().collect::<Vec<_>>(), times);
        assert_eq!(app.memory.len(), times.len());
        assert!(
            app.memory.values().all(|bytes| *bytes == 300 * MI) && app.killed,
            "of the pods that are gone, too"
        );
        assert_eq!(reads.take("cart"), Some(PastOfService::new()), "nothing is known of it");
        let asked = fake.asked().len();
        let knows = |uid: &str| {
            let mut remembered = Remembered::default();
            remembered.past_known = true;
            (uid.to_owned(), remembered)
        };
        reads.go_on(
            &services,
            &["web", "cart"].map(knows).into(),
            Timestamp::from_second(NOW_S + 15).unwrap(),
        );
        assert!(reads.read.is_empty() && fake.asked().len() == asked);
    }

    #[tokio::test]
    async fn a_read_that_failed_is_repeated_after_ten_minutes() {
        let fake = Fake::start(|_, _| error(400, "bad_data", "no")).await;
        let (mut reads, services) = (reads(&fake.url), [service("web")]);
        await_read(&mut reads, &services, NOW_S).await;
        let asked = fake.asked().len();
        assert!(asked > 0 && reads.take("web").is_none());
        await_read(&mut reads, &services, NOW_S + 599).await;
        assert_eq!(fake.asked().len(), asked);
        reads.go_on(&services, &BTreeMap::new(), Timestamp::from_second(NOW_S + 600).unwrap());
        assert!(!reads.read.is_empty());
    }
}
