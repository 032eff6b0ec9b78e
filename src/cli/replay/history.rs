//! Dumps in sequence and traces of SimKube, in place of a recording.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, anyhow};

use super::ReplayOptions;
use crate::cli::engine_settings::{agent_configs, scheduler_config};
use crate::cli::failure::Failure;
use crate::cli::output::answered;
use crate::cli::progress::ProgressBars;
use crate::cli::reading::read;
use crate::history::{DumpHistory, from_simkube, live, show_history};
use berth_config::Config;
use berth_scheduler::objects::ObjectKind;

/// What a file is, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Or none of these.
    Recording,
    Dump,
    Trace,
}

impl Form {
    fn of(path: &Path) -> Result<Form, Failure> {
        let mut start = Vec::new();
        let cannot = || format!("cannot open {}", path.display());
        // What a pipe has can be read only once.
        if std::fs::metadata(path).with_context(cannot)?.is_file() {
            File::open(path).and_then(|file| file.take(1024).read_to_end(&mut start)).with_context(cannot)?;
        }
        Ok(Form::of_bytes(&start))
    }

    fn of_bytes(start: &[u8]) -> Form {
        let text = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(start).trim_ascii_start();
        match text {
            _ if text.starts_with(b"{\"format\":") => Form::Recording,
            [b'{', ..] => Form::Dump,
            // A map of MessagePack.
            [0x80..=0x8f | 0xde | 0xdf, ..] => Form::Trace,
            _ => Form::Recording,
        }
    }
}

/// Returns the recording that is meant; `None`: it is a history.
pub fn recording(options: &ReplayOptions) -> Result<Option<&Path>, Failure> {
    let forms = options.files.iter().map(|file| Form::of(file)).collect::<Result<Vec<_>, _>>()?;
    let is_history = forms.iter().any(|form| *form != Form::Recording);
    let wrong = |why: &str| Err(Failure::Input(anyhow!("{why}")));
    match &options.files[..] {
        _ if is_history && (options.print || options.against.is_some()) => {
            wrong("dumps and traces have no decisions of berth: --print and --against are for recordings")
        }
        [file] if !is_history && options.nodes.is_none() => Ok(Some(file)),
        [_] if forms == [Form::Trace] && options.nodes.is_some() => Ok(None),
        [_] if forms == [Form::Trace] => {
            wrong("a trace of SimKube has no nodes: give --nodes with a dump that has some")
        }
        _ if options.nodes.is_some() => wrong("--nodes is for one trace of SimKube"),
        _ if forms.iter().all(|form| *form == Form::Dump) => Ok(None),
        _ => wrong("several files must be dumps of one cluster; compare two recordings with --against"),
    }
}

/// Says what became of the pods.
pub fn live_through(options: &ReplayOptions) -> Result<(), Failure> {
    let load = |files: &[_]| -> Result<Config, Failure> {
        let config = Config::load(files).map_err(|error| Failure::Input(error.into()))?;
        // The same on each machine.
        Ok(Config { agents: config.agents.max(1), ..config })
    };
    let defaults = load(&[])?;
    let mut kinds = scheduler_config(&defaults).objects;
    kinds.extend(ObjectKind::SPREADING);
    let history = match (&options.files[..], &options.nodes) {
        ([trace], Some(nodes)) => {
            let history = from_simkube(&read(trace)?, &read(nodes)?, kinds);
            history.with_context(|| trace.display().to_string()).map_err(Failure::Input)?
        }
        (dumps, _) => {
            let mut history = DumpHistory::new(kinds);
            let mut stage = ProgressBars::new().stage("dumps", dumps.len());
            for (at, dump) in dumps.iter().enumerate() {
                let added = history.add(&read(dump)?);
                added.with_context(|| dump.display().to_string()).map_err(Failure::Input)?;
                stage.set(at + 1);
            }
            let name = || dumps.first().map_or_else(String::new, |dump| dump.display().to_string());
            history.finish().with_context(name).map_err(Failure::Input)?
        }
    };
    let settings = |name: String, config: &Config| (name, scheduler_config(config), agent_configs(config));
    let mut all = Vec::new();
    if options.config.is_empty() || !history.has_placements {
        all.push(settings("with the defaults".to_owned(), &defaults));
    }
    if !options.config.is_empty() {
        let names: Vec<_> = options.config.iter().map(|file| file.display().to_string()).collect();
        all.push(settings(format!("with {}", names.join(", ")), &load(&options.config)?));
    }
    let report = live(&history, &all);
    report.notes.iter().for_each(|note| eprintln!("berth: {note}"));
    Ok(answered(options.output, &report, |out| show_history(&report, out))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_their_first_bytes() {
        for (start, form) in [
            (&b"{\"format\":2,\"version\":\"0.1.0\""[..], Form::Recording),
            (&[0x04, 0x22, 0x4d, 0x18], Form::Recording),
            (b"", Form::Recording),
            (b"nodes", Form::Recording),
            (b"{\n  \"apiVersion\": \"v1\"", Form::Dump),
            ("\u{feff} {\"kind\": \"List\"}".as_bytes(), Form::Dump),
            (&[0x85, 0xa7, b'v'], Form::Trace),
        ] {
            assert_eq!(Form::of_bytes(start), form, "{start:?}");
        }
    }
}
