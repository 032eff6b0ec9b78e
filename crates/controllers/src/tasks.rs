//! Supervised tasks of the process.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The tasks of the process: none of them ends before the process does.
#[derive(Default)]
pub struct Tasks(JoinSet<&'static str>);

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            task.await;
            name
        });
    }

    /// Waits until a task has ended, which is an error.
    pub async fn first_end(&mut self) -> Result<()> {
        match self.0.join_next().await {
            Some(Ok(name)) => bail!("the task '{name}' has ended"),
            Some(Err(error)) => Err(error).context("a task panicked"),
            None => std::future::pending().await,
        }
    }

    /// Gives tasks that end by themselves a moment, and aborts the rest.
    pub async fn finish(mut self) {
        let all = async { while self.0.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
        self.0.shutdown().await;
    }
}

/// Returns the name of this host or pod.
pub fn host_name() -> String {
    let name =
        std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    name.map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "berth".to_owned())
}

/// Resolves when the flag is lowered.
pub async fn ended(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|on| !on).await;
}
