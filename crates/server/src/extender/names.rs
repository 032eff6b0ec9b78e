//! Lookup of thousands of node names at once.
//!
//! kube-scheduler sends the names in nearly the same order each time. So the name that followed this one last time is compared
//! first, in one string of all names; only after a mismatch the name is looked up.

use std::collections::HashMap;
use std::sync::Arc;

use berth_scheduler::inventory::NodeId;

/// Ids by name, for one state of the inventory's names.
#[derive(Default)]
pub struct Names {
    text: String,
    /// By position: where the name ends in `text`; it begins where the previous name ends.
    ends: Vec<u32>,
    ids: Vec<NodeId>,
    positions: HashMap<Arc<str>, u32>,
    /// By position: the position that followed last time. The last entry is for the first name of a request.
    next: Vec<u32>,
}

impl Names {
    pub fn new(named: impl IntoIterator<Item = (NodeId, Arc<str>)>) -> Self {
        let mut names = Names::default();
        for (id, name) in named {
            names.text.push_str(&name);
            names.positions.insert(name, names.ids.len() as u32);
            names.ends.push(names.text.len() as u32);
            names.ids.push(id);
        }
        let count = names.ids.len() as u32;
        names.next = (1..=count).chain([0]).collect();
        names
    }

    /// Returns the id of each name, in order.
    pub fn find<'a>(&mut self, wanted: impl Iterator<Item = &'a str>) -> Vec<Option<NodeId>> {
        let mut before = self.ids.len();
        let found = wanted.map(|name| {
            let guess = self.next[before];
            let place = match self.is(guess, name) {
                true => guess,
                false => {
                    let place = *self.positions.get(name)?;
                    self.next[before] = place;
                    place
                }
            };
            before = place as usize;
            Some(self.ids[before])
        });
        found.collect()
    }

    fn is(&self, place: u32, name: &str) -> bool {
        let place = place as usize;
        let Some(&end) = self.ends.get(place) else {
            return false;
        };
        let begin = if place == 0 { 0 } else { self.ends[place - 1] };
        self.text.as_bytes()[begin as usize..end as usize] == *name.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_is_found_in_whatever_order_names_are_asked_for(
            requests in prop::collection::vec(prop::collection::vec(0..12_u32, 0..20), 1..6),
        ) {
            let known: Vec<Arc<str>> = (0..10).map(|n| Arc::from("n".repeat(n))).collect();
            let mut names = Names::new((0..).step_by(2).map(NodeId).zip(known));
            for request in requests {
                let asked: Vec<_> = request.iter().map(|n| "n".repeat(*n as usize)).collect();
                let expected: Vec<_> = request.iter().map(|n| (*n < 10).then_some(NodeId(n * 2))).collect();
                prop_assert_eq!(names.find(asked.iter().map(String::as_str)), expected);
            }
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_is_known() {
        assert_eq!(Names::new(std::iter::empty()).find(["", "a"].into_iter()), [None, None]);
    }
}
