use std::io::Read;

use super::read::{Ending, ReadError, read};
use super::write::frame;
use super::{FileTape, ReplayOutcome, replay};
use berth_config::RecorderConfig;
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::recording::{Opening, Tape};
use berth_scheduler::scheduler::SchedulerConfig;

fn lines(input: impl Read) -> Result<(Vec<String>, Ending), ReadError> {
    let mut all = Vec::new();
    let ending = read(input, |number, line| {
        assert_eq!(number, all.len() + 1);
        all.push(line.to_owned());
        Ok::<(), ReadError>(())
    })?;
    Ok((all, ending))
}

fn frames(blocks: &[&str]) -> Vec<u8> {
    blocks.iter().flat_map(|block| frame(block.as_bytes()).expect("a frame")).collect()
}

#[test]
fn a_recording_is_read_to_its_last_whole_frame_wherever_it_is_cut_off() {
    let (first, second) = (frames(&["a\nb\n"]), frames(&["c\n"]));
    let both = [first.clone(), second.clone()].concat();
    let text = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert_eq!(lines(&both[..]).expect("lines"), (text(&["a", "b", "c"]), Ending::Whole));
    assert_eq!(lines(&first[..]).expect("lines"), (text(&["a", "b"]), Ending::Whole));
    // The last twelve bytes are no lines, but how a frame ends.
    for end in first.len() + 1..both.len() - 12 {
        assert_eq!(lines(&both[..end]).expect("lines"), (text(&["a", "b"]), Ending::CutOff), "{end}");
    }
    for end in 0..4 {
        assert!(matches!(lines(&both[..end]), Err(ReadError::NoRecording)), "{end}");
    }
}

#[test]
fn the_lines_alone_are_read_as_the_recording_that_printed_them() {
    let text = "{\"format\":1}\n{\"at\":1}\n";
    let whole = lines(text.as_bytes()).expect("lines");
    assert_eq!(whole, lines(&frames(&[text])[..]).expect("lines"));
    let cut_off = lines(&text.as_bytes()[..text.len() - 1]).expect("lines");
    assert_eq!(cut_off, (vec!["{\"format\":1}".to_owned()], Ending::CutOff));
}

#[test]
fn a_changed_byte_is_noticed() {
    let good = frames(&["first\n", "second\n"]);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        let found = lines(&bad[..]);
        assert_ne!(found.ok().map(|(lines, _)| lines.len()), Some(2), "byte {at}");
    }
    assert!(matches!(lines(&b"{\"items\": []}"[..]), Err(ReadError::NoRecording)));
}

#[test]
fn the_latest_of_the_earlier_recordings_is_kept_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = RecorderConfig { enabled: true, directory: folder.path().join("new"), max_mib: 1 };
    std::fs::create_dir(&config.directory).expect("created");
    for name in ["berth-9.jsonl.lz4", "berth-10.jsonl.lz4", "berth-x.jsonl.lz4", "notes"] {
        std::fs::write(config.directory.join(name), "").expect("written");
    }
    let (tape, writing) = FileTape::begin(&config, 11).expect("it begins");
    drop(tape);
    writing.finish();
    let names = std::fs::read_dir(&config.directory).expect("a folder");
    let mut names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["berth-10.jsonl.lz4", "berth-11.jsonl.lz4", "berth-x.jsonl.lz4", "notes"]);
}

#[test]
fn a_recording_ends_at_its_maximum_and_what_is_written_can_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = RecorderConfig { enabled: true, directory: folder.path().to_owned(), max_mib: 1 };
    let (mut tape, writing) = FileTape::begin(&config, 1).expect("it begins");
    // Lines that cannot be compressed much.
    let mut state = 1_u64;
    let mut line = || {
        let words = (0..4000).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            format!("{state:x}")
        });
        words.collect::<String>() + "\n"
    };
    let mut taken = 0;
    while tape.write(line().into_bytes()) {
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
    assert_eq!(lines(&bytes[..]).expect("lines").1, Ending::Whole);
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
fn a_replay_tells_what_is_the_same_what_differs_and_which_line_is_damaged() {
    let agent = AgentConfig { cache: CacheLimits::unlimited(), seed: 1 };
    let opening = Opening::new(SchedulerConfig::default(), vec![agent], Estimator::default());
    let opening = serde_json::to_string(&opening).expect("JSON") + "\n";
    let replayed = |rest: &str| replay(&frames(&[&opening, rest])[..]);
    let same = replayed("{\"at\":1500000000,\"in\":\"tick\"}\n").expect("a report");
    assert!(matches!(same.outcome, ReplayOutcome::Same));
    assert_eq!((same.entries, same.decisions, same.agents, same.seconds), (1, 0, 1, 1.5));
    let other = replayed("{\"at\":1,\"in\":\"tick\",\"out\":[\"bind a/b to c\"]}\n").expect("a report");
    let ReplayOutcome::Different(first) = other.outcome else { panic!("it decides nothing") };
    assert_eq!(
        (first.entry, &first.recorded[..], &first.replayed[..]),
        (1, &["bind a/b to c".to_owned()][..], &[][..])
    );
    let error = replayed("{\"at\":1,\"in\":\"tick\"}\n{\"at\":2}\n").expect_err("it lacks its input");
    assert!(format!("{error:#}").starts_with("line 3 is damaged: missing field `in`"), "{error:#}");
}
