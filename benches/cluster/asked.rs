//! Those who ask a berth at work: what would fit, as often as it answers and with a pause, and ten viewers of its page.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use crate::subject::address_of;

const VIEWERS: usize = 10;
/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(50);
const MORE_PODS: usize = 100;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// They ask until this is dropped.
pub struct Askers {
    answers: Arc<AtomicUsize>,
    views: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Askers {
    /// # Errors
    /// Too few were answered for a measurement of what that costs.
    pub fn check(&self) -> Result<()> {
        let [answers, views] = [&self.answers, &self.views].map(|count| count.load(Ordering::Relaxed));
        eprintln!(
            "{answers} times it was answered what would fit, and {views} times the page was told what changed"
        );
        ensure!(answers >= 10 && views >= VIEWERS, "that is too few to measure what it costs");
        Ok(())
    }
}

/// Asks the process with this log, as soon as it answers.
pub fn ask(log: PathBuf) -> Askers {
    let (answers, views) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(ask_what_fits(log.clone(), answers.clone()));
    for _ in 0..VIEWERS {
        tasks.spawn(view(log.clone(), views.clone()));
    }
    Askers { answers, views, _tasks: tasks }
}

async fn url(log: &Path, path: &str) -> String {
    loop {
        if let Some(address) = address_of(log) {
            return format!("http://{address}{path}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn ask_what_fits(log: PathBuf, answers: Arc<AtomicUsize>) {
    let url = url(&log, &format!("/fit?max={MORE_PODS}")).await;
    let container = json!({"name": "main", "image": "main", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": {"containers": [container]},
    });
    let client = reqwest::Client::new();
    loop {
        // Until it answers, and it has listed the cluster, it refuses.
        if let Ok(answer) = client.post(&url).body(pod.to_string()).send().await
            && answer.status().is_success()
            && answer.bytes().await.is_ok()
        {
            answers.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn view(log: PathBuf, views: Arc<AtomicUsize>) {
    let url = url(&log, "/ui/stream").await;
    let client = reqwest::Client::new();
    loop {
        if let Ok(mut stream) = client.get(&url).send().await
            && stream.status().is_success()
        {
            while let Ok(Some(_)) = stream.chunk().await {
                views.fetch_add(1, Ordering::Relaxed);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
