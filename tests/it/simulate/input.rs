//! Invalid input.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use super::{folder, simulate};

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file can be made");
    file.write_all(bytes).expect("it can be written");
    file
}

/// Returns the error for these arguments, where `FILE` is a file with these bytes.
fn refused(bytes: &[u8], arguments: &[&str]) -> String {
    let file = file(bytes);
    let path = file.path().to_str().expect("UTF-8");
    let ran = simulate(arguments.iter().map(|word| if *word == "FILE" { path } else { word }));
    assert_eq!((ran.code, &*ran.out), (2, ""), "{arguments:?}: {}", ran.err);
    ran.err.replace(path, "FILE")
}

fn trace(bytes: &[u8]) -> String {
    let said = refused(bytes, &["--trace", "FILE"]);
    assert_eq!(said.lines().count(), 1, "one line for people: {said}");
    said
}

#[test]
fn a_bad_trace_is_refused_with_its_file_and_line() {
    let good = std::fs::read(folder().join("azure-packing.csv")).unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&good).unwrap();
    let packed = encoder.finish().unwrap();
    assert!(trace(&packed[..packed.len() / 2]).starts_with("berth: FILE:"));
    let mut corrupt = packed.clone();
    let last = corrupt.len() - 6;
    corrupt[last] ^= 0xff;
    assert!(trace(&corrupt).starts_with("berth: FILE:"));

    let text = String::from_utf8(good).unwrap();
    for (change, to, line, says) in [
        ("vmId,tenantId", "vmId,color", "FILE:1:", "color"),
        ("tenantId,cores,", "tenantId,", "FILE:1:", "cores"),
        ("0,0,", "0,0,-", "FILE:2:", "cores"),
    ] {
        let said = trace(text.replacen(change, to, 1).as_bytes());
        assert!(said.contains(line) && said.contains(says), "{change} -> {to}: {said}");
    }
    let row = |start, end| format!("{text}99,9,100.0,14.0,0,{start},{end}\n");
    for (start, end) in [("inf", "inf"), ("-inf", "1"), ("NaN", "1"), ("2", "1"), ("soon", "2")] {
        let said = trace(row(start, end).as_bytes());
        assert!(said.contains("FILE:26:"), "{start}: {said}");
    }
    assert!(trace(b"").contains("FILE:1:"));
    assert!(trace(b"\xff\xfe\x00").contains("FILE:1:"));
    let missing = simulate(["--trace", "no/such/trace.csv.gz"]);
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("no/such/trace.csv.gz"), "{}", missing.err);
}

#[test]
fn nodes_that_are_none_or_wrong_are_refused() {
    let header = b"sn,cpu_milli,memory_mib,gpu,model\n";
    assert!(refused(header, &["--nodes", "FILE"]).contains("FILE:"));
    assert!(refused(b"", &["--nodes", "0"]).contains("1 to 1000000"));
    assert!(refused(b"", &["--nodes=-3"]).contains("1 to 1000000"));
    let twice = [&header[..], b"a,1000,1024,0,\na,1000,1024,0,\n"].concat();
    assert!(refused(&twice, &["--nodes", "FILE"]).contains("FILE:3:"));
}

#[test]
fn a_cache_too_small_for_one_class_is_refused() {
    let said = refused(b"", &["--cache-mib", "0.001", "--nodes", "1000"]);
    assert!(
        said.contains("a ranked list of 1000 nodes takes 0.0") && said.contains("must hold at least one"),
        "{said}"
    );
    assert!(refused(b"", &["--cache-slots", "0"]).contains("0 is not in 1.."));
}

#[test]
fn options_out_of_their_range_are_refused() {
    for (option, value, says) in [
        ("--load", "0", "greater than 0"),
        ("--load", "inf", "finite"),
        ("--base-load", "NaN", "finite"),
        ("--churn", "-1", "negative"),
        ("--class-spread", "9", "at most 3"),
        ("--agents", "65", "65 is not in 1..=64"),
        ("--dispatcher", "best", "there is no dispatcher \"best\""),
        ("--costs", "no/such/file", "cannot read no/such/file"),
    ] {
        let said = refused(b"", &[&format!("{option}={value}")]);
        assert!(said.contains(says), "{option} {value}: {said}");
    }
    let late =
        b"vmId,tenantId,cores,ram,vmTypeId,starttime,endtime\n1,1,100,14,0,0,inf\n2,1,100,14,0,1e12,1e300\n";
    let said = refused(late, &["--trace", "FILE", "--base-load", "none"]);
    assert!(said.contains("30 years"), "{said}");
    let said = refused(b"{\n\"listHit\": 3}", &["--costs", "FILE"]);
    assert!(said.contains("FILE:2:") && said.contains("estimatorFile"), "{said}");
}
