//! The production code that writes resource claims, in a runtime whose clock is that of the simulation: its requests to the API
//! server are events, with faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_devices::ClaimRelease;
use berth_kube_io::placement::KubeClaims;
use berth_scheduler::placement::ClaimOrder;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::claim_server::{Answer, ClaimRequest};
use super::process::Who;
use super::replicas::ReplicaSettings;
use super::sim::{Event, MS, S, Sim, Step};

/// The API server aborts a request after this time.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the runtime's timers are looked at while something is written.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// A task gets as far as it can without another event.
const YIELDS: usize = 24;

/// `Err`: the connection was lost.
type Reply = Result<Answer, String>;

/// A request that has left its process.
struct Sent {
    task: u64,
    request: ClaimRequest,
    reply: oneshot::Sender<Reply>,
}

/// A request on its way.
struct InFlight {
    who: Who,
    request: ClaimRequest,
    reply: Option<oneshot::Sender<Reply>>,
    /// How long the answer takes; `None`: it is lost.
    back: Option<Duration>,
    /// The answer on its way back: it has taken effect.
    answer: Option<Reply>,
}

enum Written {
    Order(ClaimOrder, Result<Vec<u64>, String>),
    Release,
}

#[derive(Default)]
struct Mailbox {
    sent: Vec<Sent>,
    written: Vec<(u64, Written)>,
}

struct Task {
    who: Who,
    leads: Arc<AtomicBool>,
    handle: AbortHandle,
}

pub struct ClaimWriters {
    runtime: Runtime,
    /// The time in the runtime.
    now: Duration,
    mailbox: Arc<Mutex<Mailbox>>,
    tasks: BTreeMap<u64, Task>,
    requests: BTreeMap<u64, InFlight>,
    next_id: u64,
    /// A look at the timers is scheduled.
    looks: bool,
}

/// A step of a request to the API server.
#[derive(Debug, Clone, Copy)]
pub enum ClaimStep {
    /// It takes effect.
    Effect,
    /// Its answer reaches the process.
    Answer,
}

impl ClaimWriters {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        ClaimWriters {
            runtime: runtime.expect("a runtime without I/O"),
            now: Duration::ZERO,
            mailbox: Arc::default(),
            tasks: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_id: 0,
            looks: false,
        }
    }

    /// Runs `work` in a task of its own, with a writer whose requests are those of the task.
    fn spawn<F>(&mut self, who: Who, work: impl FnOnce(KubeClaims, Arc<AtomicBool>) -> F)
    where
        F: Future<Output = Written> + Send + 'static,
    {
        self.next_id += 1;
        let (task, leads) = (self.next_id, Arc::new(AtomicBool::new(true)));
        let mailbox = self.mailbox.clone();
        let send = move |request: Request<Body>| exchange(task, mailbox.clone(), request);
        let _inside = self.runtime.enter();
        let claims = KubeClaims::with_client(Client::new(tower::service_fn(send), "default"));
        let (work, mailbox) = (work(claims, leads.clone()), self.mailbox.clone());
        let handle = self.runtime.spawn(async move {
            let written = work.await;
            mailbox.lock().written.push((task, written));
        });
        self.tasks.insert(task, Task { who, leads, handle: handle.abort_handle() });
    }

    /// Lets the tasks go on until they wait, at this time.
    fn run(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = now;
        self.runtime.block_on(async {
            if !passed.is_zero() {
                tokio::time::advance(passed).await;
            }
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Returns whether a request of another process, or of an earlier start of this one, may still take effect. `are_late`: only
    /// deallocations, which nothing but production's `Fence` keeps from the next leader's pods.
    pub fn others_write(&self, who: Who, are_late: bool) -> bool {
        let counts = |sent: &InFlight| {
            !are_late || sent.request.body["status"].get("allocation").is_some_and(Value::is_null)
        };
        self.requests.values().any(|sent| sent.answer.is_none() && sent.who != who && counts(sent))
    }
}

async fn exchange(
    task: u64,
    mailbox: Arc<Mutex<Mailbox>>,
    request: Request<Body>,
) -> Result<Response<Body>, String> {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.map_err(|error| error.to_string())?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let request = ClaimRequest { method: parts.method, path: parts.uri.path().to_owned(), body };
    let (reply, answer) = oneshot::channel();
    mailbox.lock().sent.push(Sent { task, request, reply });
    match answer.await {
        Ok(answer) => {
            let (code, body) = answer?;
            let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            response.map_err(|error| error.to_string())
        }
        // Nothing is heard of it any more.
        Err(_) => std::future::pending().await,
    }
}

impl Sim {
    /// A process begins to write the resource claims of an order; its volumes have these versions.
    pub fn write_device_claims(&mut self, who: Who, order: ClaimOrder, volumes: Vec<u64>) {
        let Some(writers) = self.devices.writers.as_mut() else { return };
        self.tally.count("device claims ordered");
        writers.spawn(who, |claims, leads| async move {
            let of_devices = ClaimOrder { requests: [].into(), ..order.clone() };
            let written = claims.write(&of_devices, || leads.load(Ordering::Relaxed)).await;
            Written::Order(order, written.map(|versions| volumes.into_iter().chain(versions).collect()))
        });
        self.look_at_writers_in(MS);
    }

    /// A process begins to free the devices of a claim.
    pub fn release_device_claim(&mut self, who: Who, release: ClaimRelease) {
        let Some(writers) = self.devices.writers.as_mut() else { return };
        writers.spawn(who, |claims, leads| async move {
            // What fails is asked for again.
            drop(claims.release(&release, || leads.load(Ordering::Relaxed)).await);
            Written::Release
        });
        self.tally.count("device claim released");
        self.look_at_writers_in(MS);
    }

    /// Schedules a look at the writers, unless one is.
    fn look_at_writers_in(&mut self, pause: Duration) {
        if let Some(writers) = self.devices.writers.as_mut()
            && !std::mem::replace(&mut writers.looks, true)
        {
            self.after(pause, Event::ClaimWriters);
        }
    }

    pub fn look_at_writers(&mut self) -> Step {
        if let Some(writers) = self.devices.writers.as_mut() {
            writers.looks = false;
        }
        self.run_writers()
    }

    /// Lets the writers of all processes go on.
    fn run_writers(&mut self) -> Step {
        let now = self.now;
        let Some(mut writers) = self.devices.writers.take() else { return Ok(()) };
        writers.tasks.retain(|_, task| {
            let process = self.process(task.who);
            let leads = process.as_ref().is_some_and(|process| process.scheduler.leading());
            task.leads.store(leads, Ordering::Relaxed);
            if process.is_none() {
                task.handle.abort();
            }
            process.is_some()
        });
        writers.run(now);
        let Mailbox { sent, written } = std::mem::take(&mut *writers.mailbox.lock());
        for Sent { task, request, reply } in sent {
            let Some(who) = writers.tasks.get(&task).map(|task| task.who) else { continue };
            writers.next_id += 1;
            let id = writers.next_id;
            if let Some(sent) = self.draw_fate(id, who, request, reply) {
                writers.requests.insert(id, sent);
            }
        }
        let mut orders = Vec::new();
        for (task, written) in written {
            if let (Some(task), Written::Order(order, written)) = (writers.tasks.remove(&task), written) {
                orders.push((task.who, order, written));
            }
        }
        let is_idle = writers.tasks.is_empty();
        self.devices.writers = Some(writers);
        if !is_idle {
            self.look_at_writers_in(LOOK_EVERY);
        }
        for (who, order, written) in orders {
            self.note(|| format!("p{} wrote the claims of {}: {written:?}", who.0, order.uid));
            self.claims_written(who, &order, written)?;
        }
        Ok(())
    }

    /// Decides what becomes of a request. `None`: it has no effect.
    fn draw_fate(
        &mut self,
        id: u64,
        who: Who,
        request: ClaimRequest,
        reply: oneshot::Sender<Reply>,
    ) -> Option<InFlight> {
        // A receiver that is gone needs no answer.
        let answer = |reply: oneshot::Sender<Reply>, answer: Reply| drop(reply.send(answer));
        if !self.cluster.up {
            answer(reply, Err("connection refused".into()));
            return None;
        }
        let timeout = self.write_timeout();
        let dice = &mut self.devices.dice;
        let fate = if self.faults { dice.below(100) } else { 99 };
        let message = |text: &str| serde_json::json!({"message": text});
        let (mut effect, mut back, mut reply) = (dice.up_to(10 * MS), Some(dice.up_to(10 * MS)), Some(reply));
        let refusal = match fate {
            // The answer is lost; the request takes effect at any time until the API server aborts it.
            0..8 => {
                let limit = if dice.percent(60) { timeout } else { 200 * MS };
                effect = dice.up_to(limit);
                back = None;
                if let Some(reply) = reply.take_if(|_| dice.percent(70)) {
                    answer(reply, Err("connection reset".into()));
                }
                self.tally.count("device write without answer");
                None
            }
            8..11 => Some((500, message("etcdserver: leader changed"))),
            11..13 => Some((429, message("too many requests"))),
            13..15 => Some((403, message("forbidden"))),
            15..24 => {
                (effect, back) = (dice.up_to(timeout.min(2 * S)), Some(dice.up_to(2 * S)));
                None
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            if let Some(reply) = reply {
                answer(reply, Ok(refusal));
            }
            return None;
        }
        self.after(effect, Event::ClaimRequest(id, ClaimStep::Effect));
        Some(InFlight { who, request, reply, back, answer: None })
    }

    /// Returns the time after which the API server aborts a request: before another process can lead, as in production.
    fn write_timeout(&self) -> Duration {
        self.settings.replicas.as_ref().map_or(SERVER_TIMEOUT, ReplicaSettings::server_timeout)
    }

    pub fn claim_request(&mut self, id: u64, step: ClaimStep) -> Step {
        let requests = self.devices.writers.as_mut().map(|writers| &mut writers.requests);
        let Some(mut sent) = requests.and_then(|requests| requests.remove(&id)) else {
            return Ok(());
        };
        match step {
            ClaimStep::Effect => {
                let answer = match self.cluster.up {
                    true => Ok(self.answer_claim_request(&sent.request)),
                    false => Err("connection lost".to_owned()),
                };
                self.note_answer(&sent, &answer);
                let who = sent.who;
                if let Some((back, writers)) = sent.back.zip(self.devices.writers.as_mut()) {
                    sent.answer = Some(answer);
                    writers.requests.insert(id, sent);
                    self.after(back, Event::ClaimRequest(id, ClaimStep::Answer));
                }
                self.end_writer(who);
                Ok(())
            }
            ClaimStep::Answer => {
                if let Some((reply, answer)) = sent.reply.zip(sent.answer) {
                    let _ = reply.send(answer);
                }
                self.run_writers()
            }
        }
    }

    /// Sometimes a process ends, or leads no more, between two of its writes.
    fn end_writer(&mut self, who: Who) {
        if self.strict || !self.faults || !self.devices.dice.percent(12) || self.process(who).is_none() {
            return;
        }
        match self.devices.dice.percent(50) {
            true => self.restart(who.0),
            false if self.leader == Some(who.0) => self.stop_leading(),
            false => {}
        }
    }

    fn note_answer(&mut self, sent: &InFlight, answer: &Reply) {
        let (who, request) = (sent.who, &sent.request);
        let is_crashed = self.process(who).is_none();
        let is_other = |slot: usize| (slot, self.processes[slot].life) != who;
        let is_former = self.leader.is_some_and(is_other);
        self.note(|| {
            let code = answer.as_ref().map(|(code, _)| *code);
            format!("p{} {} {} {}: {code:?}", who.0, request.method, request.path, request.body["metadata"])
        });
        match answer {
            Ok((409, _)) => self.tally.count("device write conflict"),
            Ok((200..300, _)) if is_former => self.tally.count("former write is late"),
            Ok((200..300, _)) if is_crashed => self.tally.count("device write after a crash"),
            _ => {}
        }
    }
}
