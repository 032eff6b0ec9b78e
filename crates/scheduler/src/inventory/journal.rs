//! The journal: the latest change of each row, ordered by revision.
//!
//! Reading "since r" costs the changes after r, independent of the number of rows (Protean, section 4.3). Changes are appended to a
//! log; an entry is stale once its row has changed again. Stale entries are removed when they are more than the others, so a reader
//! visits at most twice as many entries as there are rows; and as the log is contiguous and ordered, it can be read in slices, from the
//! oldest change on.

use super::{NodeId, Revision};

/// Stale entries of a journal with few rows.
const SPARE: usize = 64;

/// A change of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    pub id: NodeId,
}

/// Changes by revision, and the latest one of each row.
#[derive(Debug, Default, Clone)]
pub struct Journal {
    log: Vec<Change>,
    /// Revision of the latest change, by id; 0: none.
    latest: Vec<Revision>,
    /// Number of rows with a change.
    rows: usize,
}

impl Journal {
    /// Records that `id` is now at `revision`, which must be newer than all recorded before.
    pub fn record(&mut self, id: NodeId, revision: Revision) {
        debug_assert!(revision > self.newest(), "revisions only grow");
        if self.latest.len() <= id.index() {
            self.latest.resize(id.index() + 1, 0);
        }
        self.rows += usize::from(self.latest[id.index()] == 0);
        self.latest[id.index()] = revision;
        if self.log.len() >= 2 * self.rows + SPARE {
            let latest = &self.latest;
            self.log.retain(|change| latest[change.id.index()] == change.revision);
        }
        self.log.push(Change { revision, id });
    }

    /// Returns the newest recorded revision; 0 if there is none.
    pub fn newest(&self) -> Revision {
        self.log.last().map_or(0, |change| change.revision)
    }

    pub fn bytes(&self) -> usize {
        self.log.capacity() * size_of::<Change>() + self.latest.capacity() * size_of::<Revision>()
    }

    /// Returns the rows newer than `revision`, newest first.
    pub fn since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        let news = self.log.iter().rev().take_while(move |change| change.revision > revision);
        news.filter(|change| self.latest[change.id.index()] == change.revision).map(|change| change.id)
    }

    /// Returns the changes after `revision`, oldest first. Those of rows that changed again may be among them.
    pub fn after(&self, revision: Revision) -> &[Change] {
        &self.log[self.log.partition_point(|change| change.revision <= revision)..]
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
        assert!(journal.after(0).is_empty());
    }

    #[test]
    fn a_row_that_changes_all_the_time_hides_no_other_and_fills_no_memory() {
        let mut journal = Journal::default();
        (0..10).for_each(|id| journal.record(NodeId(id), u64::from(id) + 1));
        (11..100_000).for_each(|revision| journal.record(NodeId(3), revision));
        assert!(journal.after(0).len() <= 2 * 10 + SPARE);
        assert_eq!(journal.since(0).map(|id| id.0).collect::<Vec<_>>(), [3, 9, 8, 7, 6, 5, 4, 2, 1, 0]);
    }

    proptest! {
        #[test]
        fn news_since_a_revision_are_the_latest_states_newest_first(
            changes in prop::collection::vec(0u32..20, 0..400),
            asked in 0u64..420,
        ) {
            let mut journal = Journal::default();
            let mut latest = std::collections::BTreeMap::new();
            for (at, id) in changes.iter().enumerate() {
                journal.record(NodeId(*id), at as u64 + 1);
                latest.insert(*id, at as u64 + 1);
            }
            let mut expected: Vec<_> = latest
                .iter()
                .filter(|(_, revision)| **revision > asked)
                .map(|(id, revision)| Change { id: NodeId(*id), revision: *revision })
                .collect();
            expected.sort_by_key(|change| change.revision);
            let after: Vec<_> =
                journal.after(asked).iter().filter(|it| latest[&it.id.0] == it.revision).copied().collect();
            prop_assert_eq!(&after, &expected);
            prop_assert!(journal.after(asked).is_sorted_by_key(|change| change.revision));
            let newest_first: Vec<_> = expected.iter().rev().map(|change| change.id).collect();
            prop_assert_eq!(journal.since(asked).collect::<Vec<_>>(), newest_first);
        }
    }
}
