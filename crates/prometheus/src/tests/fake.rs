//! Sources that read the scripted Prometheus.

use std::time::Duration;

use berth_model::ConfigDuration;
use berth_test_support::prometheus::install_provider;
pub use berth_test_support::prometheus::{Fake, RecordedRequest, error, matrix, vector};

use crate::client::Patience;
use crate::{PrometheusConfig, PrometheusSource};

pub trait Sources {
    fn config(&self) -> PrometheusConfig;
    fn source(&self, change: impl FnOnce(&mut PrometheusConfig)) -> PrometheusSource;
}

impl Sources for Fake {
    /// Asks for a day by the hour in four slices, of the modern labels, one query at a time.
    fn config(&self) -> PrometheusConfig {
        PrometheusConfig {
            url: self.url.clone(),
            labels: Some(Default::default()),
            history_length: ConfigDuration::from_secs(86_400),
            slice: ConfigDuration::from_secs(6 * 3_600),
            query_timeout: ConfigDuration::from_secs(1),
            parallelism: 1,
            ..PrometheusConfig::default()
        }
    }

    /// Impatient, so that the tests are fast.
    fn source(&self, change: impl FnOnce(&mut PrometheusConfig)) -> PrometheusSource {
        let mut config = self.config();
        change(&mut config);
        source(config)
    }
}

pub fn source(config: PrometheusConfig) -> PrometheusSource {
    install_provider();
    let patience = Patience { first_pause: Duration::from_millis(1), grace: Duration::from_millis(100) };
    PrometheusSource::with_patience(config, patience).expect("a valid configuration")
}
