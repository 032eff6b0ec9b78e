//! Update modes.

/// What a VPA allows to be done with pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Pods get what is recommended when they are created, and keep it.
    Initial,
    Recreate,
    InPlaceOrRecreate,
    /// As above, and nothing is ever evicted.
    InPlace,
}

impl Mode {
    /// Of a mode's name; one that is not known is like `Off`.
    pub fn of(name: &str) -> Mode {
        match name {
            "Initial" => Mode::Initial,
            "Recreate" | "Auto" => Mode::Recreate,
            "InPlaceOrRecreate" => Mode::InPlaceOrRecreate,
            "InPlace" => Mode::InPlace,
            _ => Mode::Off,
        }
    }

    /// Pods that run may be updated.
    pub fn updates(self) -> bool {
        !matches!(self, Mode::Off | Mode::Initial)
    }

    pub fn evicts(self) -> bool {
        matches!(self, Mode::Recreate | Mode::InPlaceOrRecreate)
    }
}
