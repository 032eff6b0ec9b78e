//! Failure of a command, with its exit code.

use std::process::ExitCode;

/// Failure of a command.
pub enum Failure {
    /// Invalid input: exit code 2, as for invalid options.
    Input(anyhow::Error),
    /// A read or the output failed: exit code 1.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Other(error)
    }
}

impl Failure {
    /// Says on standard error what failed. Returns the exit code.
    pub fn exit(self) -> ExitCode {
        let (error, code) = self.with_code();
        eprintln!("berth: {error:#}");
        ExitCode::from(code)
    }

    /// Says before it what was tried first.
    pub fn context(self, first: String) -> Failure {
        match self {
            Failure::Input(error) => Failure::Input(error.context(first)),
            Failure::Other(error) => Failure::Other(error.context(first)),
        }
    }

    /// Returns the error and the exit code.
    pub fn with_code(self) -> (anyhow::Error, u8) {
        match self {
            Failure::Input(error) => (error, 2),
            Failure::Other(error) => (error, 1),
        }
    }
}
