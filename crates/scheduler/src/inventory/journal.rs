//! The journal: rows changed since a revision, newest first, each row once.
//!
//! A row that changes moves to the head with the next revision. Reading "since r" walks from the head to the first
//! entry not newer than r: O(changed rows), independent of the number of rows (Protean, section 4.3).

use super::{NodeId, Revision};

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    revision: Revision,
}

/// Intrusive list over dense ids, ordered by revision.
#[derive(Debug, Default, Clone)]
pub struct Journal {
    links: Vec<Link>,
    head: Option<u32>,
}

impl Journal {
    /// Records that `id` is now at `revision`, which must be newer than all recorded before.
    pub fn record(&mut self, id: NodeId, revision: Revision) {
        debug_assert!(revision > self.newest(), "revisions only grow");
        let at = id.0;
        if self.links.len() <= id.index() {
            self.links.resize(id.index() + 1, Link { newer: NONE, older: NONE, revision: 0 });
        }
        self.unlink(at);
        let older = self.head.unwrap_or(NONE);
        self.links[at as usize] = Link { newer: NONE, older, revision };
        if older != NONE {
            self.links[older as usize].newer = at;
        }
        self.head = Some(at);
    }

    fn unlink(&mut self, at: u32) {
        let Link { newer, older, revision } = self.links[at as usize];
        if revision == 0 {
            return; // never recorded
        }
        match newer {
            NONE => self.head = (older != NONE).then_some(older),
            _ => self.links[newer as usize].older = older,
        }
        if older != NONE {
            self.links[older as usize].newer = newer;
        }
    }

    /// Returns the newest recorded revision; 0 if there is none.
    pub fn newest(&self) -> Revision {
        self.head.map_or(0, |at| self.links[at as usize].revision)
    }

    pub fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }

    /// Returns the rows newer than `revision`, newest first.
    pub fn since(&self, revision: Revision) -> impl Iterator<Item = (NodeId, Revision)> + '_ {
        let mut at = self.head.unwrap_or(NONE);
        std::iter::from_fn(move || {
            if at == NONE {
                return None;
            }
            let link = self.links[at as usize];
            if link.revision <= revision {
                return None;
            }
            let id = NodeId(at);
            at = link.older;
            Some((id, link.revision))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_journal_has_no_news() {
        let journal = Journal::default();
        assert_eq!(journal.newest(), 0);
        assert_eq!(journal.since(0).count(), 0);
    }

    proptest! {
        #[test]
        fn news_since_a_revision_are_the_latest_states_newest_first(
            changes in prop::collection::vec(0u32..20, 0..200),
            asked in 0u64..220,
        ) {
            let mut journal = Journal::default();
            let mut latest = std::collections::BTreeMap::new();
            for (at, id) in changes.iter().enumerate() {
                journal.record(NodeId(*id), at as u64 + 1);
                latest.insert(*id, at as u64 + 1);
            }
            let mut expected: Vec<_> =
                latest.into_iter().filter(|(_, r)| *r > asked).map(|(id, r)| (NodeId(id), r)).collect();
            expected.sort_by_key(|(_, r)| std::cmp::Reverse(*r));
            prop_assert_eq!(journal.since(asked).collect::<Vec<_>>(), expected);
        }
    }
}
