//! Log of what the scheduler's limits hold back, which users see in conditions and statuses.

use std::time::Duration;

use berth_scheduler::engine::{Engine, LimitsReached};

const EVERY: Duration = Duration::from_secs(30);
/// Maximum number of namespaces in one line.
const NAMESPACES_MAX: usize = 5;

/// Logs when more is held back than before. Never returns.
pub async fn watch(engine: Engine) {
    let mut before = LimitsReached::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let now = engine.limits_reached(NAMESPACES_MAX);
        if is_news(&before, &now) {
            tracing::warn!(
                refused_pods = now.refused_pods,
                full_namespaces = ?now.full_namespaces,
                ignored_allocations = now.ignored_allocations,
                held_back_namespaces = ?now.held_back_namespaces,
                "limits hold pods or allocations back; their conditions and statuses say which limit and what to do"
            );
        }
        before = now;
    }
}

fn is_news(before: &LimitsReached, now: &LimitsReached) -> bool {
    let is_full = |namespace| !before.full_namespaces.contains(namespace);
    let is_held_back = |namespace| !before.held_back_namespaces.contains(namespace);
    now.refused_pods > before.refused_pods
        || now.ignored_allocations > before.ignored_allocations
        || now.full_namespaces.iter().any(is_full)
        || now.held_back_namespaces.iter().any(is_held_back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_before_is_logged() {
        let some = LimitsReached {
            refused_pods: 2,
            full_namespaces: vec!["x".into(), "y".into()],
            ignored_allocations: 7,
            held_back_namespaces: vec!["z".into()],
        };
        assert!(is_news(&LimitsReached::default(), &some));
        assert!(!is_news(&some, &some));
        assert!(is_news(&LimitsReached { refused_pods: 1, ..some.clone() }, &some));
        assert!(is_news(&LimitsReached { ignored_allocations: 6, ..some.clone() }, &some));
        assert!(is_news(&LimitsReached { full_namespaces: vec!["x".into()], ..some.clone() }, &some));
        assert!(is_news(&LimitsReached { held_back_namespaces: vec![], ..some.clone() }, &some));
        assert!(!is_news(
            &some,
            &LimitsReached { full_namespaces: vec![], ignored_allocations: 0, ..some.clone() }
        ));
    }
}
