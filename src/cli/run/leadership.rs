//! Which processes place pods, and which one decides about the binds of all: by leases.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::watch;

use super::tasks::Tasks;
use super::{ended, host_name};
use crate::cluster::client::without_retries;
use crate::cluster::{Deadline, Elector, Fence, Holder, LeaseConfig, Members};
use crate::config::{Config, NAMESPACE_FILE};
use crate::engine::Engine;
use crate::scheduler::Share;

/// Where this process stands. Cheap to clone.
#[derive(Clone)]
pub(super) struct Leadership {
    /// This process places pods, as far as its lease says.
    places: watch::Receiver<bool>,
    deadline: Option<Deadline>,
    /// For the requests that only a process may send that places pods.
    pub fence: Option<Fence>,
    decides: Decides,
    /// Who decides.
    pub holder: watch::Receiver<Option<Holder>>,
}

/// Whether this process decides about the binds of all: it holds the Lease, and has seen what was bound before.
#[derive(Clone)]
struct Decides {
    ready: Arc<AtomicBool>,
    deadline: Option<Deadline>,
}

impl Leadership {
    /// To be asked right before a bind.
    pub fn places(&self) -> bool {
        *self.places.borrow() && self.deadline.as_ref().is_none_or(Deadline::is_ahead)
    }

    /// To be asked before anything is said about the bind of another.
    pub fn decides(&self) -> bool {
        self.decides.ready.load(Ordering::Acquire)
            && self.decides.deadline.as_ref().is_none_or(Deadline::is_ahead)
    }
}

/// Where another replica reaches our HTTPS: the address of our pod, or the one that is configured if it is one.
fn advertised(serving: Option<SocketAddr>) -> Option<SocketAddr> {
    let serving = serving?;
    let pod = std::env::var("POD_IP").ok().and_then(|ip| ip.parse().ok());
    let ip = pod.or((!serving.ip().is_unspecified()).then_some(serving.ip()))?;
    Some(SocketAddr::new(ip, serving.port()))
}

/// Runs for the leases that the configuration asks for, and lets the engine follow. `serving` is the address of HTTPS.
pub(super) fn lead(
    tasks: &mut Tasks,
    engine: &Engine,
    cluster: &kube::Config,
    config: &Config,
    serving: Option<SocketAddr>,
    working: watch::Receiver<bool>,
) -> Result<Leadership> {
    let election = &config.leader_election;
    let client = without_retries(cluster.clone())?;
    if !election.enabled {
        // Receivers keep their last value when the sender is gone.
        let (places, holder) = (watch::channel(true).1, watch::channel(None).1);
        let decides = Decides { ready: Arc::default(), deadline: None };
        let (to, ready) = (engine.clone(), decides.ready.clone());
        follow(tasks, engine, client, places.clone(), move |leads| set(&to, Some(&ready), leads));
        return Ok(Leadership { places, deadline: None, fence: None, decides, holder });
    }
    let host = host_name();
    let identity = format!("{host}_{}", std::process::id());
    let lease = LeaseConfig {
        duration: election.lease_duration.get(),
        renew_deadline: election.renew_deadline.get(),
        retry_period: election.retry_period.get(),
        address: advertised(serving),
        ..LeaseConfig::new(
            election.lease_namespace(Path::new(NAMESPACE_FILE)),
            election.name.clone(),
            identity.clone(),
        )
    };
    let (elector, leading) = Elector::new(client.clone(), lease.clone())?;
    let (deadline, holder) = (elector.deadline(), elector.holder());
    let decides = Decides { ready: Arc::default(), deadline: Some(deadline.clone()) };
    tasks.spawn("leader election", elector.run(ended(working.clone())));
    let (to, ready) = (engine.clone(), decides.ready.clone());
    if !election.active_active {
        follow(tasks, engine, client, leading.clone(), move |leads| set(&to, Some(&ready), leads));
        let fence = Some(Fence::new(deadline.clone(), &lease));
        return Ok(Leadership { places: leading, deadline: Some(deadline), fence, decides, holder });
    }

    follow(tasks, engine, client.clone(), leading, move |leads| {
        tracing::info!(leads, "this process decides about the binds of all replicas");
        ready.store(leads, Ordering::Release);
    });
    let member = LeaseConfig {
        name: member_name(&election.name, &host),
        member_of: Some(election.name.clone()),
        ..lease
    };
    let (elector, places) = Elector::new(client.clone(), member.clone())?;
    let deadline = elector.deadline();
    tasks.spawn("membership", elector.run(ended(working)));
    let (members, others) = Members::new(client.clone(), member.clone(), election.name.clone());
    tasks.spawn("members", members.run());
    follow_members(tasks, engine, identity, others.clone());
    let to = engine.clone();
    follow(tasks, engine, client, places.clone(), move |leads| set(&to, None, leads));
    let fence = Some(Fence::new(deadline.clone(), &member));
    Ok(Leadership { places, deadline: Some(deadline), fence, decides, holder })
}

/// The name of the lease that says that we are there.
fn member_name(group: &str, host: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let host: String = host.chars().map(safe).take(100).collect();
    format!("{group}-member-{}-{}", host.trim_matches('-'), std::process::id())
}

fn set(engine: &Engine, decides: Option<&AtomicBool>, leads: bool) {
    let before = engine.with(|scheduler, _| {
        let before = scheduler.leading();
        scheduler.set_leading(leads);
        before
    });
    if let Some(decides) = decides {
        decides.store(leads, Ordering::Release);
    }
    match (before, leads) {
        (false, true) => tracing::info!("this process schedules"),
        (true, false) => tracing::warn!("leadership is lost: this process places nothing more"),
        _ => {}
    }
}

/// Tells `apply` when leadership begins, once we have seen what was bound before that, and at once when it ends.
fn follow(
    tasks: &mut Tasks,
    engine: &Engine,
    client: Client,
    mut leading: watch::Receiver<bool>,
    apply: impl Fn(bool) + Send + 'static,
) {
    let engine = engine.clone();
    tasks.spawn("leadership", async move {
        loop {
            if *leading.borrow_and_update() {
                let lost = leading.clone();
                tokio::select! {
                    () = see_what_is_bound(&engine, &client) => apply(true),
                    () = ended(lost) => {}
                }
            } else {
                apply(false);
            }
            if leading.changed().await.is_err() {
                // Nobody can take it away: there is no election, or the elector has said its last word.
                std::future::pending::<()>().await;
            }
        }
    });
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Longer than a watch needs to tell of a change.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const PAGE_SIZE: u32 = 5_000;

/// Waits until our view has every bind that was carried out before this call: whoever led before may have bound pods that
/// our watch has not told of yet, and which we would take to wait for a node still.
async fn see_what_is_bound(engine: &Engine, client: &Client) {
    let began = Instant::now();
    while !engine.with(|scheduler, _| scheduler.synced()) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    loop {
        let waiting = engine.with(|scheduler, _| scheduler.without_node());
        if waiting.is_empty() {
            break;
        }
        let listed = match list_without_node(client).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "cannot read which pods are bound, trying again");
                tokio::time::sleep(ASK_AGAIN / 10).await;
                continue;
            }
        };
        let mut missing: Vec<_> = waiting.into_iter().filter(|uid| !listed.contains(&**uid)).collect();
        let asked = Instant::now();
        while !missing.is_empty() && asked.elapsed() < ASK_AGAIN {
            engine.with(|scheduler, _| missing.retain(|uid| scheduler.is_without_node(uid)));
            if !missing.is_empty() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        if missing.is_empty() {
            break;
        }
        tracing::warn!(
            pods = missing.len(),
            "the watch has not told yet what became of pods that are bound or gone"
        );
    }
    tracing::debug!(took = ?began.elapsed(), "seen what is bound");
}

/// The uids of all pods that have no node: a consistent read.
async fn list_without_node(client: &Client) -> kube::Result<HashSet<String>> {
    let api: Api<Pod> = Api::all(client.clone());
    let mut params = ListParams::default().fields("spec.nodeName=").limit(PAGE_SIZE);
    let mut uids = HashSet::new();
    loop {
        let page = api.list_metadata(&params).await?;
        uids.extend(page.items.into_iter().filter_map(|pod| pod.metadata.uid));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(uids),
        }
    }
}

fn follow_members(
    tasks: &mut Tasks,
    engine: &Engine,
    me: String,
    mut members: watch::Receiver<BTreeSet<String>>,
) {
    let engine = engine.clone();
    tasks.spawn("shares", async move {
        loop {
            let share = Share::new(&me, members.borrow_and_update().iter().map(String::as_str));
            engine.with(|scheduler, now| scheduler.set_share(Some(share), now));
            if members.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_of_a_member_has_a_name_that_an_object_may_have() {
        let name = member_name("berth", "Host_1.example.com-");
        assert!(name.starts_with("berth-member-host-1-example-com-"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
    }

    #[test]
    fn others_are_told_an_address_that_they_can_reach() {
        let address = |text: &str| Some(text.parse().expect("an address"));
        assert_eq!(advertised(address("10.1.2.3:10260")), address("10.1.2.3:10260"));
        assert_eq!(advertised(address("0.0.0.0:10260")), None);
        assert_eq!(advertised(None), None);
    }
}
