//! Log lines on standard error; `RUST_LOG` sets the filter.

use tracing_subscriber::EnvFilter;

use berth_config::LogFormat;

/// Quiet by default: decisions of berth, and problems that need attention.
const DEFAULT: &str = "warn,berth=info";

/// Does nothing if logging is initialised already, as in tests.
pub(super) fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = match format {
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
}
