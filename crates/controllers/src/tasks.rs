//! Supervised tasks of the process.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The tasks of the process: none of them ends before the process does.
#[derive(Default)]
pub struct Tasks {
    all: JoinSet<&'static str>,
    /// Those that end by themselves when they are told to.
    ending: Vec<&'static str>,
}

impl Tasks {
    /// Spawns a task that is aborted when the process ends.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.all.spawn(async move {
            task.await;
            name
        });
    }

    /// Spawns a task that ends by itself when it is told to, which the process waits for.
    pub fn spawn_ending(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.ending.push(name);
        self.spawn(name, task);
    }

    /// Waits until a task has ended, which is an error.
    pub async fn first_end(&mut self) -> Result<()> {
        match self.all.join_next().await {
            Some(Ok(name)) => bail!("the task '{name}' has ended"),
            Some(Err(error)) => Err(error).context("a task panicked"),
            None => std::future::pending().await,
        }
    }

    /// Waits for the tasks that have been told to end, at most for this time, and aborts the others.
    pub async fn finish(mut self, most: Duration) {
        let ends = async {
            while !self.ending.is_empty()
                && let Some(ended) = self.all.join_next().await
            {
                self.ending.retain(|name| ended.as_ref().ok() != Some(name));
            }
        };
        let _ = tokio::time::timeout(most, ends).await;
        self.all.shutdown().await;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_tasks_that_end_and_for_no_others() {
        let done = Arc::new(AtomicBool::new(false));
        let (mut tasks, told) = (Tasks::default(), done.clone());
        tasks.spawn("a loop", std::future::pending());
        tasks.spawn_ending("a server", async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            told.store(true, Ordering::Relaxed);
        });
        let began = tokio::time::Instant::now();
        tasks.finish(Duration::from_secs(6)).await;
        assert!(done.load(Ordering::Relaxed));
        assert_eq!(began.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_aborted_in_the_end() {
        let mut tasks = Tasks::default();
        tasks.spawn_ending("a server", std::future::pending());
        let began = tokio::time::Instant::now();
        tasks.finish(Duration::from_secs(6)).await;
        assert_eq!(began.elapsed().as_secs(), 6);
    }
}
