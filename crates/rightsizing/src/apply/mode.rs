//! Update modes.

/// Update mode of a VPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Pods get the recommendation when they are created, and keep it.
    Initial,
    Recreate,
    InPlaceOrRecreate,
    /// As above, but pods are never evicted.
    InPlace,
}

impl Mode {
    /// Returns the mode of this name; an unknown name counts as `Off`.
    pub fn of(name: &str) -> Mode {
        match name {
            "Initial" => Mode::Initial,
            "Recreate" | "Auto" => Mode::Recreate,
            "InPlaceOrRecreate" => Mode::InPlaceOrRecreate,
            "InPlace" => Mode::InPlace,
            _ => Mode::Off,
        }
    }

    /// Returns whether running pods may be updated.
    pub fn updates(self) -> bool {
        !matches!(self, Mode::Off | Mode::Initial)
    }

    pub fn evicts(self) -> bool {
        matches!(self, Mode::Recreate | Mode::InPlaceOrRecreate)
    }
}
