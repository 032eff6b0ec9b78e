//! Books of the holds of a guard, kept independently of it, and a judge of its answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Node, Pod, PodSpec, Usage};
use berth_scheduler::invariants;
use berth_scheduler::placement::{Binding, Truth};
use berth_scheduler::scheduler::{BindRefusal, BindReview, Requester};

use super::process::{Process, Shadow};
use super::sim::Step;

/// Room on a node for an allowed request whose effect is not known.
#[derive(Debug, Clone)]
pub struct Hold {
    pub pod: Pod,
    /// Time from which the request can no longer take effect.
    until: Duration,
    /// It is the pod's latest request.
    latest: bool,
}

impl Shadow {
    /// Books an allowed request. Of a pod that is known to be bound, the API server refuses it.
    fn hold(&mut self, binding: &Binding, pod: Pod, until: Duration) {
        let (uid, node) = (&binding.uid, &binding.node);
        for ((_, at), hold) in self.holds.iter_mut().filter(|((held, _), _)| held == uid) {
            hold.latest = at == node;
        }
        let key = (uid.clone(), node.clone());
        let hold = self.holds.entry(key).or_insert(Hold { pod, until, latest: true });
        hold.until = hold.until.max(until);
    }

    /// Others count a pod with held room as what it is now.
    pub fn pod_changed(&mut self, pod: &Pod) {
        for (_, hold) in self.holds.iter_mut().filter(|((uid, _), _)| *uid == pod.uid) {
            hold.pod = pod.clone();
        }
    }

    /// The pod is bound or gone, so no request for it can take effect any more.
    pub fn end_holds(&mut self, uid: &str) {
        self.holds.retain(|(held, _), _| **held != *uid);
        self.rivals.remove(uid);
    }

    /// A bind of this process has failed: the request of another client for the same node keeps the room.
    pub fn refused(&mut self, binding: &Binding, now: Duration) {
        self.assumed.remove(&binding.uid);
        let may_be_bound = self.pods.get(&binding.uid).is_some_and(|pod| !pod.deleting);
        let rival = self.rivals.remove(&binding.uid).filter(|(_, until)| may_be_bound && *until > now);
        if let Some((pod, until)) = rival {
            self.hold(binding, pod, until);
        }
    }

    /// The pod of a hold was read at some time after `asked`.
    fn read_held(&mut self, binding: &Binding, truth: &Truth, asked: Duration) {
        let (uid, key) = (&binding.uid, (binding.uid.clone(), binding.node.clone()));
        let has_ended = self.holds.get(&key).is_some_and(|hold| hold.until <= asked);
        match truth {
            Truth::Unreadable(_) => {}
            Truth::BoundTo(host) => {
                let latest = self.held().find(|(pod, _)| pod.uid == *uid);
                let usage = latest.map(|(pod, _)| pod.usage.clone());
                if let Some(usage) = usage {
                    self.assumed.insert(uid.clone(), (host.clone(), usage));
                }
                if self.assumed.contains_key(uid) {
                    self.bound(uid, host);
                    self.end_holds(uid);
                }
            }
            Truth::Gone if has_ended => self.forget(uid),
            Truth::Unbound { .. } if has_ended => {
                self.holds.remove(&key);
            }
            Truth::Gone | Truth::Unbound { .. } => {}
        }
    }

    /// Returns the room on a node that is held for pods other than `except`, which does not take it yet.
    pub fn held_on(&self, node: &str, except: &str) -> impl Iterator<Item = &Arc<Usage>> {
        let is_there = |uid: &Arc<str>| self.assumed.get(uid).is_some_and(|(at, _)| **at == *node);
        let held = self
            .holds
            .iter()
            .filter(move |((uid, at), _)| **at == *node && **uid != *except && !is_there(uid));
        held.map(|(_, hold)| &hold.pod.usage)
    }

    /// Returns the pods whose latest request is allowed, with their nodes.
    pub fn held(&self) -> impl Iterator<Item = (&Pod, &Arc<str>)> {
        let held =
            self.holds.iter().filter(|((uid, _), hold)| hold.latest && !self.assumed.contains_key(uid));
        held.map(|((_, node), hold)| (&hold.pod, node))
    }

    pub fn is_held(&self, uid: &str) -> bool {
        self.held().any(|(pod, _)| *pod.uid == *uid)
    }

    /// Returns why a kubelet would reject the pod on this node.
    fn rejection(&self, pod: &Pod, node: &Node) -> Step {
        let spec = PodSpec { usage: self.usage_of_node(&pod.usage, node), ..PodSpec::default() };
        let bare = Node { taints: [].into(), unschedulable: false, ..node.clone() };
        let others = self.usage_on(&node.name, &pod.uid);
        invariants::admits(&spec.into(), &bare, others.iter()).map_err(|violation| violation.what)
    }

    /// Returns whether berth binds the pod to this node, or knows it to be bound.
    pub fn is_assumed(&self, uid: &str, node: &str) -> bool {
        self.is_bound(uid) || self.assumed.get(uid).is_some_and(|(at, _)| **at == *node)
    }

    /// Returns whether the pod is known to be bound.
    fn is_bound(&self, uid: &str) -> bool {
        self.settled.contains(uid) || self.pods.get(uid).is_some_and(|pod| pod.node_name.is_some())
    }

    /// Returns the pod as the watch, a read or a hold shows it.
    fn find(&self, uid: &str, read: Option<&Pod>) -> Option<Pod> {
        let held = || self.holds.iter().find(|((held, _), _)| **held == *uid).map(|(_, hold)| &hold.pod);
        self.pods.get(uid).or(read).or_else(held).cloned()
    }

    /// Checks the answer to a request to bind a pod, which was `read` before.
    fn judge_review(&self, binding: &Binding, read: Option<&Pod>, review: &BindReview) -> Step {
        let (uid, node) = (&binding.uid, &binding.node);
        let wrong = |why: &str| Err(format!("the review of {uid} to {node} is {review:?}, but {why}"));
        if self.is_bound(uid) {
            return match review {
                BindReview::Allowed => Ok(()),
                _ => wrong("it is bound, so that the API server decides"),
            };
        }
        let own = self.assumed.get(uid).map(|(at, _)| at);
        let is_charged = own.is_some() || self.is_held(uid);
        let hold = self.holds.get(&(uid.clone(), node.clone()));
        let is_held_there = hold.is_some();
        if *review == BindReview::Unknown {
            let waits = self.pods.get(uid).is_some_and(|pod| !pod.deleting);
            let is_known = own.is_some() || waits || read.is_some();
            return if is_known { wrong("the pod is known") } else { Ok(()) };
        }
        let Some(pod) = self.find(uid, read) else {
            return wrong("the pod is not known");
        };
        let Some(there) = self.nodes.get(node) else {
            return match review {
                BindReview::Refused(BindRefusal::UnknownNode(_)) => Ok(()),
                _ if is_charged => Ok(()),
                _ => wrong("the node is not known"),
            };
        };
        let rejection = self.rejection(&pod, there);
        // A request that nobody reviewed may have filled a former node since.
        let has_room_there = hold.is_some_and(|hold| hold.latest || rejection.is_ok());
        let counts = &*pod.scheduler_name == "berth" && self.pods.contains_key(uid) && !pod.deleting;
        // What is charged already uses no more of its quota.
        let excess = if counts && !is_charged { self.judge_quota(&pod) } else { Ok(()) };
        match review {
            BindReview::Allowed if own.is_some_and(|at| at != node) => wrong("berth binds it elsewhere"),
            // It takes no more room.
            BindReview::Allowed if is_held_there => Ok(()),
            BindReview::Allowed => rejection.and(excess).or_else(|why| wrong(&why)),
            BindReview::Refused(BindRefusal::OwnBind(at)) if own == Some(at) && at != node => Ok(()),
            BindReview::Refused(why) => match why {
                _ if has_room_there && own.is_none() => wrong("its room there is held"),
                BindRefusal::GrantedToOthers(_) if own == Some(node) && rejection.is_err() => Ok(()),
                BindRefusal::NoLongerFits { .. } if rejection.is_err() => Ok(()),
                BindRefusal::OverQuota { .. } if excess.is_err() => Ok(()),
                _ => wrong(&format!("room: {rejection:?}, quota: {excess:?}")),
            },
            BindReview::Unknown => Ok(()),
        }
    }
}

impl Process {
    /// Lets the guard of this process review a request, which can take effect until `until`, and judges its answer.
    pub fn review(
        &mut self,
        binding: &Binding,
        read: Option<&Pod>,
        until: Option<Duration>,
        requester: Requester,
    ) -> Result<BindReview, String> {
        let review = self.scheduler.review(binding, read, until, requester);
        let shadow = &mut self.shadow;
        shadow.judge_review(binding, read, &review)?;
        if let (BindReview::Allowed, Some(until)) = (&review, until)
            && let Some(pod) = shadow.find(&binding.uid, read)
        {
            if !shadow.is_assumed(&binding.uid, &binding.node) {
                shadow.hold(binding, pod, until);
            } else if requester == Requester::Other && !shadow.is_bound(&binding.uid) {
                let rival = shadow.rivals.entry(binding.uid.clone()).or_insert((pod, until));
                rival.1 = rival.1.max(until);
            }
        }
        Ok(review)
    }

    /// Ends what a read of a held pod ends.
    pub fn held_pod_read(&mut self, binding: &Binding, truth: &Truth, asked: Duration, now: Duration) {
        self.scheduler.held_pod_read(binding, truth, asked, now);
        self.shadow.read_held(binding, truth, asked);
    }

    /// Returns the number of pods of berth that wait for the bind of another client.
    pub fn held(&self) -> usize {
        self.scheduler.census().get("held").copied().unwrap_or(0)
    }

    /// Returns the requests whose pods are to be read.
    pub fn holds_due(&self, now: Duration) -> Result<Vec<Binding>, String> {
        let due = self.scheduler.holds_due(now);
        let found: BTreeSet<_> = due.iter().map(|it| (it.uid.clone(), it.node.clone())).collect();
        let booked = self.shadow.holds.iter().filter(|(_, hold)| hold.until <= now);
        let booked: BTreeSet<_> = booked.map(|(key, _)| key.clone()).collect();
        match found == booked {
            true => Ok(due),
            false => Err(format!("the holds {found:?} are due, should be {booked:?}")),
        }
    }

    /// Checks that the guard holds what the books say.
    pub fn judge_holds(&self) -> Step {
        let (held, booked) = (self.scheduler.foreign_counts().holds, &self.shadow.holds);
        match held == booked.len() {
            true => Ok(()),
            false => Err(format!("there are {held} holds, should be {booked:?}")),
        }
    }
}
