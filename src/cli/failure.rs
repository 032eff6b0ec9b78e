//! Why a command has no answer, and the exit code that tells programs.

/// Why there is no answer.
pub enum Failure {
    /// What was given is wrong: exit code 2, as for wrong options.
    Input(anyhow::Error),
    /// Something could not be read, or the output failed: exit code 1.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Other(error)
    }
}

impl Failure {
    /// What to say, and the exit code.
    pub fn with_code(self) -> (anyhow::Error, u8) {
        match self {
            Failure::Input(error) => (error, 2),
            Failure::Other(error) => (error, 1),
        }
    }
}
