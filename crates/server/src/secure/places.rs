//! Limits of connections: of all clients, and of each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// One address may have this part of all connections, so that no client shuts out the others.
const SHARE_OF_ADDRESS: usize = 4;

/// Places for connections. Clones share them.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place; free again when it is dropped.
pub(super) struct Place {
    places: Places,
    address: IpAddr,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Places(Arc::new(Shared { max, taken: Mutex::default() }))
    }

    /// Returns a place for a connection from this address; `None` if it has its share, or all are taken.
    pub(super) fn take(&self, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        let mut taken = self.0.taken.lock();
        let share = self.0.max.div_ceil(SHARE_OF_ADDRESS);
        if taken.all >= self.0.max || taken.by_address.get(&address).is_some_and(|own| *own >= share) {
            return None;
        }
        taken.all += 1;
        *taken.by_address.entry(address).or_default() += 1;
        Some(Place { places: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_address.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_takes_a_quarter_of_the_places_and_gives_them_back() {
        let places = Places::new(10);
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let take = |last, times| -> Vec<Place> {
            std::iter::repeat_with(|| places.take(address(last))).take(times).flatten().collect()
        };
        let hostile = take(1, 100);
        assert_eq!(hostile.len(), 3);
        let others: Vec<_> = (2..=8).flat_map(|last| take(last, 1)).collect();
        assert_eq!((others.len(), places.take(address(9)).is_none()), (7, true));
        drop(hostile);
        assert_eq!(take(1, 100).len(), 3);
        drop(others);
        assert!(places.0.taken.lock().by_address.is_empty());
        let same = "::ffff:10.0.0.1".parse().expect("an address");
        let _mapped = [places.take(same), places.take(same), places.take(same)];
        assert!(places.take(address(1)).is_none(), "written as IPv6, it is the same");
    }
}
