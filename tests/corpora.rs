//! Fuzzing corpora: inputs found by the fuzzers are replayed in every test run (`docs/fuzzing.md`).

#[path = "../fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::path::Path;

/// Larger corpora are for the fuzzer, not for every test run.
const FILES_MAX: usize = 100;
const BYTES_MAX: usize = 4096;

#[test]
fn no_kept_input_breaks_what_its_target_checks() {
    for (name, check) in targets::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let listed = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let files: Vec<_> = listed.map(|file| file.expect("a file").path()).collect();
        assert!((8..=FILES_MAX).contains(&files.len()), "{name} has {} files", files.len());
        for file in files {
            let data = fs::read(&file).expect("readable");
            assert!(data.len() <= BYTES_MAX, "{} has {} bytes", file.display(), data.len());
            // Captured, and shown if the check fails.
            println!("{}", file.display());
            check(&data);
        }
    }
}
