use std::io::Read;

use super::read::{Ending, ReadError, read};
use super::write::frame;
use super::{FileTape, ReplayOutcome, replay};
use berth_config::RecorderConfig;
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::recording::{FORMAT, Input, Opening, RecordingEntry, Tape, framed};
use berth_scheduler::scheduler::SchedulerConfig;

/// Returns the records, each a text.
fn texts(input: impl Read) -> Result<(Vec<String>, Ending), ReadError> {
    let mut all = Vec::new();
    let ending = read(input, |record| {
        all.push(record.parse()?);
        assert_eq!(record.number, all.len());
        Ok::<(), ReadError>(())
    })?;
    Ok((all, ending))
}

fn block(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| framed(text).expect("a record")).collect()
}

fn file(blocks: &[&[&str]]) -> Vec<u8> {
    blocks.iter().flat_map(|texts| frame(&block(texts)).expect("a frame")).collect()
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn a_recording_is_read_to_its_last_whole_frame_wherever_it_is_cut_off() {
    let first = file(&[&["a", "b"]]);
    let both = file(&[&["a", "b"], &["c"]]);
    assert_eq!(texts(&both[..]).expect("records"), (owned(&["a", "b", "c"]), Ending::Whole));
    assert_eq!(texts(&first[..]).expect("records"), (owned(&["a", "b"]), Ending::Whole));
    // The last eight bytes are no records, but how a frame ends.
    for end in first.len() + 1..both.len() - 8 {
        assert_eq!(texts(&both[..end]).expect("records"), (owned(&["a", "b"]), Ending::CutOff), "{end}");
    }
    for end in 0..4 {
        assert!(matches!(texts(&both[..end]), Err(ReadError::NoRecording)), "{end}");
    }
}

#[test]
fn lines_of_json_are_read_as_the_records_that_they_were() {
    let opening = Opening::new(SchedulerConfig::default(), Vec::new(), Estimator::default());
    let line = serde_json::to_string(&opening).expect("JSON") + "\n";
    let formats = |input: &[u8]| {
        let mut formats = Vec::new();
        let ending = read(input, |record| {
            formats.push(record.opening()?.format);
            Ok::<(), ReadError>(())
        });
        (formats, ending.expect("records"))
    };
    let twice = line.repeat(2);
    assert_eq!(formats(twice.as_bytes()), (vec![FORMAT; 2], Ending::Whole));
    assert_eq!(formats(&twice.as_bytes()[..twice.len() - 1]), (vec![FORMAT], Ending::CutOff));
}

#[test]
fn a_changed_byte_is_noticed() {
    let good = file(&[&["first"], &["second"]]);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        assert_ne!(texts(&bad[..]).ok().map(|(texts, _)| texts.len()), Some(2), "byte {at}");
    }
    assert!(matches!(texts(&b"{\"items\": []}"[..]), Err(ReadError::NoRecording)));
    let next = framed(&(FORMAT + 1, "what follows is not known")).expect("a record");
    let next = frame(&next).expect("a frame");
    let read = read(&next[..], |record| record.opening().map(|_| ()));
    let why = read.expect_err("another format").to_string();
    assert!(why.contains("use the version that made it"), "{why}");
}

#[test]
fn the_latest_of_the_earlier_recordings_is_kept_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = RecorderConfig { enabled: true, directory: folder.path().join("new"), max_mib: 1 };
    std::fs::create_dir(&config.directory).expect("created");
    for name in ["berth-9.rec.lz4", "berth-10.rec.lz4", "berth-x.rec.lz4", "notes"] {
        std::fs::write(config.directory.join(name), "").expect("written");
    }
    let (tape, writing) = FileTape::begin(&config, 11).expect("it begins");
    drop(tape);
    writing.finish();
    let names = std::fs::read_dir(&config.directory).expect("a folder");
    let mut names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["berth-10.rec.lz4", "berth-11.rec.lz4", "berth-x.rec.lz4", "notes"]);
}

#[test]
fn a_recording_ends_at_its_maximum_and_what_is_written_can_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = RecorderConfig { enabled: true, directory: folder.path().to_owned(), max_mib: 1 };
    let (mut tape, writing) = FileTape::begin(&config, 1).expect("it begins");
    // Records that cannot be compressed much.
    let mut state = 1_u64;
    let mut record = || {
        let words = (0..4000).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            format!("{state:x}")
        });
        framed(&words.collect::<String>()).expect("a record")
    };
    let mut taken = 0;
    while tape.write(record()) {
        taken += 1;
        assert!(taken < 10_000, "it does not end");
        std::thread::yield_now();
    }
    let file = writing.file.clone();
    let written = writing.bytes.clone();
    drop(tape);
    writing.finish();
    let bytes = std::fs::read(file).expect("the file");
    assert_eq!(bytes.len() as u64, written.load(std::sync::atomic::Ordering::Relaxed));
    assert!(bytes.len() <= 1 << 20 && bytes.len() > 1 << 19, "{}", bytes.len());
    assert_eq!(texts(&bytes[..]).expect("records").1, Ending::Whole);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_that_names_the_setting() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let config = RecorderConfig { enabled: true, directory: file.path().join("x"), max_mib: 1 };
    let error = FileTape::begin(&config, 1).err().expect("an error");
    assert!(
        format!("{error:#}").contains("set recorder.directory to a folder that berth may write"),
        "{error:#}"
    );
}

#[test]
fn a_replay_tells_what_is_the_same_what_differs_and_which_record_is_damaged() {
    let agent = AgentConfig { cache: CacheLimits::unlimited(), seed: 1 };
    let opening = Opening::new(SchedulerConfig::default(), vec![agent], Estimator::default());
    let ticks = |decisions: &[&str]| RecordingEntry {
        at: 1_500_000_000,
        input: Input::Tick,
        decisions: owned(decisions),
    };
    let replayed = |rest: &[u8]| {
        let opening = framed(&opening).expect("a record");
        replay(&[&opening, rest].map(|block| frame(block).expect("a frame")).concat()[..])
    };
    let entry = |decisions: &[&str]| framed(&ticks(decisions)).expect("a record");
    let same = replayed(&entry(&[])).expect("a report");
    assert!(matches!(same.outcome, ReplayOutcome::Same));
    assert_eq!((same.entries, same.decisions, same.agents, same.seconds), (1, 0, 1, 1.5));
    let other = replayed(&entry(&["bind a/b to c"])).expect("a report");
    let ReplayOutcome::Different(first) = other.outcome else { panic!("it decides nothing") };
    assert_eq!((first.entry, first.recorded, first.replayed), (1, owned(&["bind a/b to c"]), owned(&[])));
    let error =
        replayed(&[entry(&[]), framed(&1).expect("a record")].concat()).expect_err("it lacks its input");
    assert!(format!("{error:#}").starts_with("record 3 is damaged: "), "{error:#}");
}
