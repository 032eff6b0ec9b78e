//! Supervised tasks of the process.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;

/// The tasks of the process: none of them ends before the process does.
#[derive(Default)]
pub(super) struct Tasks(JoinSet<&'static str>);

impl Tasks {
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            task.await;
            name
        });
    }

    /// Waits until a task has ended, which is an error.
    pub(super) async fn first_end(&mut self) -> Result<()> {
        match self.0.join_next().await {
            Some(Ok(name)) => bail!("the task '{name}' has ended"),
            Some(Err(error)) => Err(error).context("a task panicked"),
            None => std::future::pending().await,
        }
    }

    /// Gives tasks that end by themselves a moment, and aborts the rest.
    pub(super) async fn finish(mut self) {
        let all = async { while self.0.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
        self.0.shutdown().await;
    }
}
