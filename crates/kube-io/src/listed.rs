//! Bookkeeping of a relist.

/// Keys of the objects in the list that a watch is receiving, in a set of any type. When the list ends, every other object is
/// gone.
#[derive(Debug, Default)]
pub struct Listed<S> {
    /// `None` between lists.
    keys: Option<S>,
}

impl<S: Default> Listed<S> {
    /// Begins a list, and drops one that broke off.
    pub fn begin(&mut self) {
        self.keys = Some(S::default());
    }

    /// Adds a key if a list is being received.
    pub fn note<K>(&mut self, key: K)
    where
        S: Extend<K>,
    {
        if let Some(keys) = &mut self.keys {
            keys.extend([key]);
        }
    }

    /// Ends the list and returns its keys.
    pub fn end(&mut self) -> S {
        self.keys.take().unwrap_or_default()
    }
}
