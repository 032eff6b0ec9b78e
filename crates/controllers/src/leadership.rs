//! Leadership by leases: which processes place pods, and which one decides about the binds of all.

mod known_binds;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Result;
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::tasks::{Tasks, ended, host_name};
use berth_config::{Config, NAMESPACE_FILE};
use berth_kube_io::client::without_retries;
use berth_kube_io::{Deadline, Elector, Fence, Holder, LeaseConfig, LeaseExit, MemberLeases, WatchCounters};
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::Share;
use berth_telemetry::Health;
use known_binds::{await_known_binds, await_known_claims};

/// Term of a process that leads without an election.
const ONLY_TERM: u64 = 1;

/// Leadership state of this process. Cheap to clone.
#[derive(Clone)]
pub struct Leadership {
    /// Whether this process places pods, according to its lease.
    places: watch::Receiver<bool>,
    deadline: Option<Deadline>,
    /// Fence for requests that only a process that places pods may send.
    pub fence: Option<Fence>,
    /// Fence for requests that only the replica that gives devices may send.
    pub device_fence: Option<Fence>,
    decides: Decides,
    /// The replica that decides.
    pub holder: watch::Receiver<Option<Holder>>,
    /// For each lease.
    exits: Arc<[LeaseExit]>,
    /// Our identity as a candidate; `None` without an election.
    identity: Option<String>,
}

/// Whether this process decides about the binds of all: it holds the Lease and has read the existing binds.
#[derive(Clone)]
struct Decides {
    /// Term for which the existing binds have been read.
    ready: Arc<Mutex<Option<u64>>>,
    deadline: Option<Deadline>,
    stopping: Arc<AtomicBool>,
    handing_over: Arc<AtomicBool>,
}

impl Decides {
    fn new(deadline: Option<Deadline>) -> Decides {
        Decides { ready: Arc::default(), deadline, stopping: Arc::default(), handing_over: Arc::default() }
    }
}

impl Leadership {
    /// Returns the term in which this process places pods now. To be called right before a bind.
    pub fn term(&self) -> Option<u64> {
        term_of(self.deadline.as_ref()).filter(|_| *self.places.borrow())
    }

    /// Returns the term in which this process decides about the binds of all replicas now. To be called
    /// before each answer about a bind.
    pub fn decides(&self) -> Option<u64> {
        self.reviews().filter(|_| !self.decides.stopping.load(Ordering::SeqCst))
    }

    /// Returns the term in which this process reviews the binds of others now: longer than it decides about anything else, because
    /// its last own binds are reviewed, too.
    pub fn reviews(&self) -> Option<u64> {
        let Decides { ready, deadline, handing_over, .. } = &self.decides;
        let term = term_of(deadline.as_ref());
        term.filter(|_| !handing_over.load(Ordering::SeqCst) && *ready.lock() == term)
    }

    /// Returns whether this process still decides, in this term.
    pub fn decides_in(&self, term: u64) -> bool {
        self.decides() == Some(term)
    }

    /// Returns whether a decision that began in this term still counts: other than for [`Leadership::decides`], the process may
    /// have begun to hand over, as long as it holds the Lease.
    pub fn may_finish(&self, term: u64) -> bool {
        term_of(self.decides.deadline.as_ref()) == Some(term)
    }

    /// Tells other replicas that this process will stop, so that one of them takes over at once.
    pub fn announce_exit(&self) {
        self.exits.iter().for_each(LeaseExit::announce);
    }

    /// Waits until another replica holds the Lease, at most for this time. Returns whether one does.
    pub async fn successor(&self, most: Duration) -> bool {
        let mut holder = self.holder.clone();
        let is_other = |holder: &Option<Holder>| {
            holder.as_ref().is_some_and(|holder| self.identity.as_ref() != Some(&holder.identity))
        };
        let found = tokio::time::timeout(most, holder.wait_for(is_other)).await;
        found.is_ok_and(|found| found.is_ok())
    }

    /// Begins no more decisions, except reviews. Those that have begun may finish.
    pub fn stop_deciding(&self) {
        self.decides.stopping.store(true, Ordering::SeqCst);
    }

    /// Begins no more reviews, either. Those that have begun may finish.
    pub fn stop_reviewing(&self) {
        self.decides.handing_over.store(true, Ordering::SeqCst);
    }

    /// At the end, the leases are released only if no request of this process can take effect any more. `binds_known`: the version of
    /// pods up to which this process has seen all binds that it made or allowed.
    pub fn keep_leases_if(&self, keep: bool, binds_known: Option<u64>) {
        for exit in &*self.exits {
            exit.keep_if(keep);
            exit.set_binds_known(binds_known.unwrap_or_default());
        }
    }

    /// Waits until the leases are released, or are left to expire.
    pub async fn released(&self) {
        for exit in &*self.exits {
            exit.released().await;
        }
    }
}

/// Returns the term of a lease with this deadline; without a lease there is only one term.
fn term_of(deadline: Option<&Deadline>) -> Option<u64> {
    deadline.map_or(Some(ONLY_TERM), Deadline::term)
}

/// Returns the address at which other replicas reach our HTTPS: the address of our pod, or the configured
/// address if it is specific.
fn advertised(serving: Option<SocketAddr>) -> Option<SocketAddr> {
    let serving = serving?;
    let pod = std::env::var("POD_IP").ok().and_then(|ip| ip.parse().ok());
    let ip = pod.or((!serving.ip().is_unspecified()).then_some(serving.ip()))?;
    Some(SocketAddr::new(ip, serving.port()))
}

/// Context of the election.
pub struct ElectionContext<'a> {
    pub cluster: &'a kube::Config,
    pub config: &'a Config,
    /// Address of HTTPS.
    pub serving: Option<SocketAddr>,
    /// The watch of pods; it is started later.
    pub pods: &'a Arc<WatchCounters>,
    pub claims: &'a Arc<WatchCounters>,
    /// Set to the time of each renewal, in seconds since 1970.
    pub renewed: &'a Arc<AtomicI64>,
}

/// Takes part in the elections of the configuration, and passes the results to the engine.
pub fn lead(
    tasks: &mut Tasks,
    engine: &Engine,
    ElectionContext { cluster, config, serving, pods, claims, renewed }: ElectionContext,
    health: &Health,
    working: watch::Receiver<bool>,
) -> Result<Leadership> {
    let election = &config.leader_election;
    let client = without_retries(cluster.clone())?;
    if !election.enabled {
        // Receivers keep their last value when the sender is dropped.
        let (places, holder) = (watch::channel(true).1, watch::channel(None).1);
        let decides = Decides::new(None);
        let (to, ready) = (engine.clone(), decides.ready.clone());
        let (health, at_end) = (health.clone(), decides.stopping.clone());
        health.set_catching_up(true);
        follow(tasks, engine, (client, pods, claims), (places.clone(), None), move |term| {
            set(&to, &at_end, Some(&ready), term);
            health.set_catching_up(false);
        });
        return Ok(Leadership {
            places,
            deadline: None,
            fence: None,
            device_fence: None,
            decides,
            holder,
            exits: Arc::default(),
            identity: None,
        });
    }
    let host = host_name();
    // A restarted container has the name and process id of its predecessor, whose requests may still be in
    // flight.
    let run = RandomState::new().hash_one(std::process::id()) as u32;
    let identity = format!("{host}_{}_{run:08x}", std::process::id());
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
    let elector = elector.with_renewed(renewed.clone());
    let (deadline, holder) = (elector.deadline(), elector.holder());
    let decides = Decides::new(Some(deadline.clone()));
    let exit = elector.exit();
    let longest = lease.renew_deadline + lease.retry_period;
    health.watch_loop("leader election", longest, elector.rounds());
    tasks.spawn("leader election", elector.run_and_observe(ended(working.clone())));
    let (to, ready) = (engine.clone(), decides.ready.clone());
    if !election.active_active {
        let (leads, at_end) = ((leading.clone(), Some(deadline.clone())), decides.stopping.clone());
        follow(tasks, engine, (client, pods, claims), leads, move |term| {
            set(&to, &at_end, Some(&ready), term)
        });
        let fence = Some(Fence::new(deadline.clone(), &lease));
        let exits = [exit].into();
        return Ok(Leadership {
            places: leading,
            deadline: Some(deadline),
            device_fence: fence.clone(),
            fence,
            decides,
            holder,
            exits,
            identity: Some(identity),
        });
    }

    let device_fence = Some(Fence::new(deadline.clone(), &lease));
    let to = engine.clone();
    follow(tasks, engine, (client.clone(), pods, claims), (leading, Some(deadline)), move |term| {
        // Binds and claims of the former holder are known now, and nothing of it can take effect any more.
        to.give_devices(term.is_some());
        let before = std::mem::replace(&mut *ready.lock(), term);
        if before != term {
            let decides = term.is_some();
            tracing::info!(decides, "guard role changed");
        }
    });
    let member = LeaseConfig {
        name: member_name(&election.name, &identity),
        member_of: Some(election.name.clone()),
        ..lease
    };
    let (elector, places) = Elector::new(client.clone(), member.clone())?;
    let (deadline, member_exit) = (elector.deadline(), elector.exit());
    tasks.spawn("membership", elector.run(ended(working)));
    let (members, others) = MemberLeases::new(client.clone(), member.clone(), election.name.clone());
    tasks.spawn("members", members.run());
    follow_members(tasks, engine, identity.clone(), others.clone());
    let (to, leads) = (engine.clone(), (places.clone(), Some(deadline.clone())));
    let at_end = decides.stopping.clone();
    follow(tasks, engine, (client, pods, claims), leads, move |term| {
        set(&to, &at_end, None, term);
    });
    let fence = Some(Fence::new(deadline.clone(), &member));
    let exits = [exit, member_exit].into();
    Ok(Leadership {
        places,
        deadline: Some(deadline),
        fence,
        device_fence,
        decides,
        holder,
        exits,
        identity: Some(identity),
    })
}

/// Returns the name of the member Lease of the process with this identity.
fn member_name(group: &str, identity: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let identity: String = identity.chars().map(safe).collect();
    // The suffix makes names unique.
    let from = identity.len().saturating_sub(100);
    format!("{group}-member-{}", identity[from..].trim_matches('-'))
}

fn set(engine: &Engine, stopping: &AtomicBool, decides: Option<&Mutex<Option<u64>>>, term: Option<u64>) {
    let before = engine.set_term(term);
    if let Some(decides) = decides {
        *decides.lock() = term;
    }
    match (before, term.is_some()) {
        (false, true) => tracing::info!("this process schedules"),
        (true, false) if stopping.load(Ordering::Acquire) => tracing::info!("scheduling stopped"),
        (true, false) => tracing::warn!("leadership lost, scheduling stopped"),
        _ => {}
    }
}

/// Calls `apply` when a term begins, after the existing binds have been read, and immediately when leadership
/// ends.
fn follow(
    tasks: &mut Tasks,
    engine: &Engine,
    (client, pods, claims): (Client, &Arc<WatchCounters>, &Arc<WatchCounters>),
    (mut leading, deadline): (watch::Receiver<bool>, Option<Deadline>),
    apply: impl Fn(Option<u64>) + Send + 'static,
) {
    let (engine, pods, claims) = (engine.clone(), pods.clone(), claims.clone());
    tasks.spawn("leadership", async move {
        loop {
            let leads = *leading.borrow_and_update();
            match term_of(deadline.as_ref()).filter(|_| leads) {
                None => apply(None),
                Some(term) => {
                    let handed_over = deadline.as_ref().and_then(Deadline::handed_over);
                    let known = async {
                        await_known_binds(&engine, &client, &pods.progress, handed_over).await;
                        await_known_claims(&client, &claims.progress).await;
                    };
                    tokio::select! {
                        () = known => apply(Some(term)),
                        () = lost(leading.clone()) => {}
                    }
                }
            }
            if leading.changed().await.is_err() {
                // The value is final: there is no election, or the elector has ended.
                std::future::pending::<()>().await;
            }
        }
    });
}

/// Resolves when the flag becomes false; never if the sender is dropped.
async fn lost(mut leading: watch::Receiver<bool>) {
    if leading.wait_for(|leads| !leads).await.is_err() {
        std::future::pending::<()>().await;
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
            engine.set_share(share);
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
        let name = member_name("berth", "Host_1.example.com_7_0badcafe");
        assert_eq!(name, "berth-member-host-1-example-com-7-0badcafe");
        let name = member_name("berth", &format!("{}_7_0badcafe", "x".repeat(300)));
        assert!(name.len() < 253 && name.ends_with("-7-0badcafe"), "{name}");
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
