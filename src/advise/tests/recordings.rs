use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::advise::recording::{Column, Recording, read};
use berth_rightsizing::recommend::backtest::RecordedResource;
use berth_simulator::trace::TraceError;
use berth_test_support::published;

const SECOND: i64 = 1_000_000_000;

fn value() -> Column {
    Column { name: "value".into(), resource: RecordedResource::Cpu, scale: 1.0 }
}

/// Reads a file with these bytes; the path in an error becomes `FILE`.
fn with_columns(bytes: &[u8], columns: &[Column]) -> Result<Recording, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("written");
    let name = |text: String| text.replace(&file.path().display().to_string(), "FILE");
    read(file.path(), columns).map_err(|error| name(error.to_string()))
}

/// Returns times in seconds, and amounts.
fn samples(text: &str) -> Result<Vec<(i64, i64)>, String> {
    let recording = with_columns(text.as_bytes(), &[value()])?;
    let [series] = &recording.recorded[..] else { panic!("{recording:?}") };
    let [samples] = &series.pods[..] else { panic!("{recording:?}") };
    Ok(samples.iter().map(|sample| (sample.time / SECOND, sample.amount)).collect())
}

#[test]
fn times_may_be_written_in_many_ways() {
    for (header, first, second) in [
        ("ts", "1392388200", "1392388500"),
        ("timestamp", "1392388200000", "1392388500000"),
        ("timestamp", "2014-02-14 14:30:00", "2014-02-14 14:35:00"),
        ("time", "2014-02-14T14:30:00Z", "2014-02-14T15:35:00+01:00"),
    ] {
        let read = samples(&format!("{header},value\n{first},0.5\n{second},1.2345\n"));
        assert_eq!(read, Ok(vec![(1_392_388_200, 500), (1_392_388_500, 1234)]), "{first}");
    }
}

#[test]
fn several_columns_of_a_compressed_file_are_several_series() {
    let text = ",timestamp,cpu,ram,what\n0,10,50,1.5,x\n1,20,,2,y\n1,20,60,3,y\n2,30,70,4,z\n";
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(text.as_bytes()).expect("memory");
    let columns = [
        Column { name: "cpu".into(), resource: RecordedResource::Cpu, scale: 0.01 },
        Column { name: "ram".into(), resource: RecordedResource::Memory, scale: 1024.0 },
    ];
    let recording = with_columns(&gzip.finish().expect("memory"), &columns).expect("a right file");
    assert_eq!(recording.out_of_order, 1);
    let [cpu, ram] = &recording.recorded[..] else { panic!("{recording:?}") };
    assert!(cpu.name.ends_with(":cpu") && ram.name.ends_with(":ram"));
    let amounts = |at: usize| -> Vec<(i64, i64)> {
        recording.recorded[at].pods[0].iter().map(|sample| (sample.time / SECOND, sample.amount)).collect()
    };
    assert_eq!(amounts(0), [(10, 500), (30, 700)]);
    assert_eq!(amounts(1), [(10, 1536), (20, 2048), (30, 4096)]);
}

#[test]
fn errors_name_the_line() {
    for (text, problem) in [
        ("", "FILE:1: the file is empty"),
        ("ts,value\n", "FILE:1: there is nothing after the header"),
        ("ts,value\n1,\n", "FILE:2: there is nothing after the header"),
        ("when,value\n1,2\n", "FILE:1: no column is called ts, timestamp, time: the columns are when,value"),
        (
            "ts,usage\n1,2\n",
            "FILE:1: no column is called value: the columns are ts,usage; name one with --cpu-column",
        ),
        ("ts,value\n1,2\n\n3\n", "FILE:4: 1 values, but the header names 2 columns"),
        ("ts,value\nnoon,2\n", "FILE:2: ts is \"noon\", expected seconds since 1970"),
        ("ts,value\n1e300,2\n", "FILE:2: ts is \"1e300\""),
        ("ts,value\nNaN,2\n", "FILE:2: ts is \"NaN\""),
        ("ts,value\n1,2\n2,-1\n", "FILE:3: value is \"-1\", expected a usage of 0 or more"),
        ("ts,value\n1,NaN\n", "FILE:2: value is \"NaN\""),
        ("ts,value\n1,\u{1b}[31m\n", "FILE:2: value is \"\\u{1b}[31m\""),
    ] {
        let error = samples(text).expect_err("a wrong file");
        assert!(error.starts_with(problem), "{error:?} should begin with {problem:?}");
    }
    let cut = samples("\u{1f}\u{8b}\u{8}").expect_err("no gzip, and no text");
    assert!(cut.starts_with("FILE:1:"), "{cut}");
    let missing = read(Path::new("/nowhere/x.csv"), &[value()]).expect_err("no file");
    assert!(matches!(missing, TraceError::Open { .. }));
}

#[test]
fn published_recordings_can_be_read() {
    for (file, rows, out_of_order) in [
        ("crane/input3.csv.gz", 23_040, 0),
        ("nab/ec2_cpu_utilization_24ae8d.csv", 4_032, 0),
        ("nab/ec2_disk_write_bytes_1ef3de.csv", 4_719, 11),
    ] {
        let Some(path) = published(&format!("usage/{file}")) else { return };
        let recording = read(&path, &[value()]).expect("a right file");
        assert_eq!(
            (recording.recorded[0].pods[0].len(), recording.out_of_order),
            (rows, out_of_order),
            "{file}"
        );
    }
}
