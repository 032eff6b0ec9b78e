//! Limits of connections. A connection without an admitted request competes only with others of that kind: when their slots are
//! taken, the oldest of them is closed. So clients without credentials shut out nobody, from however many addresses they connect.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::http::Request;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// One address may have this part of the slots of each group.
const SHARE_OF_ADDRESS: usize = 4;

/// Clients whose requests were admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientGroup {
    /// API servers that call the webhooks.
    Webhooks,
    /// Clients with credentials.
    Clients,
}

/// Slots of all connections. Clones share them.
#[derive(Clone)]
pub(super) struct ConnectionSlots(Arc<Shared>);

struct Shared {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    /// Connections without an admitted request, oldest first; a message closes one.
    unadmitted: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    unadmitted_counts: ConnectionCounts,
    webhooks: ConnectionCounts,
    clients: ConnectionCounts,
}

/// Number of connections of a group.
#[derive(Default)]
struct ConnectionCounts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The slot of a connection, released when it is dropped; an extension of each of its requests. Clones are the same slot.
#[derive(Clone)]
pub(super) struct ConnectionSlot(Arc<SlotHolder>);

struct SlotHolder {
    slots: ConnectionSlots,
    id: u64,
    address: IpAddr,
    group: OnceLock<ClientGroup>,
}

/// Moves the connection of an admitted request to the slots of its group, where it is not closed for others. If these are taken, it
/// remains where it is, and its next request tries again.
pub(crate) fn mark_admitted<B>(request: &Request<B>, group: ClientGroup) {
    if let Some(slot) = request.extensions().get::<ConnectionSlot>() {
        slot.join(group);
    }
}

impl ConnectionSlots {
    /// A quarter of `max` is for connections without an admitted request, a quarter for webhooks, the rest for other clients.
    pub(super) fn new(max: usize) -> Self {
        ConnectionSlots(Arc::new(Shared { max, taken: Mutex::default() }))
    }

    /// Returns a slot for a new connection, and a receiver that gets a message when the connection must be closed for a newer one.
    pub(super) fn take(&self, address: IpAddr) -> (ConnectionSlot, oneshot::Receiver<()>) {
        let address = address.to_canonical();
        let quarter = (self.0.max / 4).max(1);
        let (sender, closed) = oneshot::channel();
        let mut taken = self.0.taken.lock();
        let oldest = if taken.unadmitted_counts.of(address) >= share_of(quarter) {
            taken.unadmitted.iter().find(|(_, (other, _))| *other == address).map(|(id, _)| *id)
        } else if taken.unadmitted_counts.all >= quarter {
            taken.unadmitted.first_key_value().map(|(id, _)| *id)
        } else {
            None
        };
        if let Some(oldest) = oldest.and_then(|id| taken.leave(id)) {
            // Its task may have ended just now.
            let _ = oldest.send(());
        }
        let id = taken.next;
        taken.next += 1;
        taken.unadmitted.insert(id, (address, sender));
        taken.unadmitted_counts.add(address);
        let taker = SlotHolder { slots: self.clone(), id, address, group: OnceLock::new() };
        (ConnectionSlot(Arc::new(taker)), closed)
    }
}

impl ConnectionSlot {
    fn join(&self, group: ClientGroup) {
        let SlotHolder { slots, id, address, group: current } = &*self.0;
        if current.get().is_some() {
            return;
        }
        let quarter = (slots.0.max / 4).max(1);
        let most = match group {
            ClientGroup::Webhooks => quarter,
            ClientGroup::Clients => slots.0.max.saturating_sub(2 * quarter).max(1),
        };
        let mut taken = slots.0.taken.lock();
        let counts = taken.counts(group);
        if counts.all >= most || counts.of(*address) >= share_of(most) {
            return;
        }
        // Without its sender, the connection is never closed for another one.
        if taken.leave(*id).is_some() {
            taken.counts(group).add(*address);
            let _ = current.set(group);
        }
    }
}

impl Drop for SlotHolder {
    fn drop(&mut self) {
        let mut taken = self.slots.0.taken.lock();
        match self.group.get() {
            Some(group) => taken.counts(*group).remove(self.address),
            None => drop(taken.leave(self.id)),
        }
    }
}

impl Taken {
    /// Removes a connection without an admitted request; `None` if it is not one.
    fn leave(&mut self, id: u64) -> Option<oneshot::Sender<()>> {
        let (address, sender) = self.unadmitted.remove(&id)?;
        self.unadmitted_counts.remove(address);
        Some(sender)
    }

    fn counts(&mut self, group: ClientGroup) -> &mut ConnectionCounts {
        match group {
            ClientGroup::Webhooks => &mut self.webhooks,
            ClientGroup::Clients => &mut self.clients,
        }
    }
}

impl ConnectionCounts {
    fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or_default()
    }

    fn add(&mut self, address: IpAddr) {
        self.all += 1;
        *self.by_address.entry(address).or_default() += 1;
    }

    fn remove(&mut self, address: IpAddr) {
        self.all -= 1;
        if let Some(own) = self.by_address.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

fn share_of(slots: usize) -> usize {
    slots.div_ceil(SHARE_OF_ADDRESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Connection = (ConnectionSlot, oneshot::Receiver<()>);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_open((slot, _): &Connection) -> bool {
        let taken = slot.0.slots.0.taken.lock();
        slot.0.group.get().is_some() || taken.unadmitted.contains_key(&slot.0.id)
    }

    fn open(connections: &[Connection]) -> usize {
        connections.iter().filter(|it| is_open(it)).count()
    }

    #[test]
    fn clients_without_credentials_close_each_others_oldest_connections_and_no_others() {
        // 8 without an admitted request, 8 for webhooks, 16 for clients.
        let slots = ConnectionSlots::new(32);
        let webhook = slots.take(address(1));
        webhook.0.join(ClientGroup::Webhooks);
        let client = slots.take(address(1));
        client.0.join(ClientGroup::Clients);
        let mut hostile: Vec<_> = (0..100).map(|at| slots.take(address(10 + at))).collect();
        assert_eq!(open(&hostile), 8);
        assert_eq!(open(&hostile[92..]), 8, "the newest ones");
        assert_eq!(hostile[0].1.try_recv(), Ok(()));
        assert!(is_open(&webhook) && is_open(&client));
        // A newcomer is served as long as nobody opens as many after it.
        let mut newcomer = slots.take(address(2));
        hostile.extend((0..7).map(|at| slots.take(address(10 + at))));
        assert!(is_open(&newcomer));
        newcomer.0.join(ClientGroup::Webhooks);
        hostile.extend((0..100).map(|at| slots.take(address(10 + at))));
        assert!(is_open(&newcomer) && newcomer.1.try_recv().is_err());
        assert_eq!(open(&hostile), 8);
    }

    #[test]
    fn one_address_has_a_quarter_of_the_slots_of_each_group_and_gives_them_back() {
        let slots = ConnectionSlots::new(32);
        let other = slots.take(address(2));
        let hostile: Vec<_> = (0..100).map(|_| slots.take(address(1))).collect();
        assert_eq!(open(&hostile), 2);
        let mapped = slots.take("::ffff:10.0.0.1".parse().expect("an address"));
        assert_eq!(open(&hostile), 1, "written as IPv6, it is the same");
        drop(mapped);
        assert!(is_open(&other));
        drop(hostile);

        let admit = |group, count| -> Vec<Connection> {
            let taken = (0..count).map(|_| {
                let taken = slots.take(address(1));
                taken.0.join(group);
                taken
            });
            taken.collect()
        };
        let clients = admit(ClientGroup::Clients, 10);
        let mut webhooks = admit(ClientGroup::Webhooks, 10);
        // Beyond that, they remain in the first group: two of one address.
        assert_eq!(open(&clients), 4);
        assert_eq!(open(&webhooks), 2 + 2);
        drop(clients);
        let last = webhooks.last_mut().expect("ten");
        last.0.join(ClientGroup::Clients);
        assert!(last.0.0.group.get().is_some(), "a slot is free again");
        drop((webhooks, other));
        let taken = slots.0.taken.lock();
        assert!(taken.unadmitted.is_empty());
        for counts in [&taken.unadmitted_counts, &taken.webhooks, &taken.clients] {
            assert!(counts.all == 0 && counts.by_address.is_empty());
        }
    }
}
