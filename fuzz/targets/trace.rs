//! Traces and lists of nodes for `berth simulate`, and recordings of usage for `berth recommend --backtest`. The first byte selects
//! the reader.

use std::cell::RefCell;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use berth::advise::recording::{self, Column};
use berth_model::{Amounts, Pod};
use berth_rightsizing::recommend::AMOUNT_MAX;
use berth_rightsizing::recommend::backtest::RecordedResource;
use berth_scheduler::placement::Binding;
use berth_simulator::ArrivalTrace;
use berth_simulator::trace::{self, TraceError, TraceOptions};
use tempfile::NamedTempFile;

use super::pod::schedule;

thread_local! {
    static FILE: RefCell<NamedTempFile> = RefCell::new(NamedTempFile::new().expect("a temporary file"));
}

pub fn check(data: &[u8]) {
    let [reader, bytes @ ..] = data else { return };
    FILE.with_borrow_mut(|file| {
        let inner = file.as_file_mut();
        let written = inner.seek(SeekFrom::Start(0)).and_then(|_| inner.write_all(bytes));
        written.and_then(|()| inner.set_len(bytes.len() as u64)).expect("written");
        match reader % 4 {
            0 => arrivals(file.path(), 0),
            1 => arrivals(file.path(), 3),
            2 => nodes(file.path()),
            _ => recordings(file.path()),
        }
    });
}

/// Returns the value, or checks the error.
fn sound<T>(read: Result<T, TraceError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(TraceError::Invalid { line, problem, .. }) => {
            assert!(line >= 1 && !problem.is_empty(), "line {line}: {problem:?}");
            None
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn arrivals(file: &Path, widen: u32) {
    let Some(trace) = sound(trace::read(file, None, TraceOptions { widen })) else { return };
    let ArrivalTrace { templates, running, arrivals, .. } = &trace;
    assert!(!arrivals.is_empty() && arrivals.is_sorted_by(|a, b| a.arrives_s <= b.arrives_s));
    for arrival in running.iter().chain(arrivals) {
        assert!(arrival.arrives_s.is_finite() && arrival.arrives_s >= 0.0, "{arrival:?}");
        assert!(arrival.leaves_s >= arrival.arrives_s, "{arrival:?}");
        assert!((arrival.template as usize) < templates.len(), "{arrival:?}");
    }
    assert!(trace.span_s().is_finite() && trace.kinds() >= 1);
    positive(&trace.peak());
    for spec in templates {
        let pod =
            Pod { uid: "u".into(), usage: spec.usage.clone(), spec: Ok(spec.clone()), ..Pod::default() };
        let [uid, namespace, name] = ["u", "", ""].map(Into::into);
        schedule(&pod, &Binding { uid, namespace, name, node: "n".into(), decision: None });
    }
}

fn nodes(file: &Path) {
    for node in sound(trace::read_nodes(file)).unwrap_or_default() {
        assert!(!node.name.is_empty());
        positive(&node.allocatable);
    }
}

fn positive(amounts: &Amounts) {
    let Amounts { cpu_milli, memory, ephemeral_storage, pods } = *amounts;
    assert!([cpu_milli, memory, ephemeral_storage, pods].iter().all(|amount| *amount >= 0), "{amounts:?}");
}

fn recordings(file: &Path) {
    let column = |name: &str, resource| Column { name: name.into(), resource, scale: 0.5 };
    let columns = [column("cpu", RecordedResource::Cpu), column("ram", RecordedResource::Memory)];
    let Some(recording) = sound(recording::read(file, &columns)) else { return };
    assert_eq!(recording.recorded.len(), columns.len());
    for samples in recording.recorded.iter().flat_map(|recorded| &recorded.pods) {
        assert!(samples.is_sorted_by(|a, b| a.time < b.time), "{samples:?}");
        assert!(samples.iter().all(|sample| (0..=AMOUNT_MAX).contains(&sample.amount)), "{samples:?}");
    }
}
