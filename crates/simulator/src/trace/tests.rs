//! Valid files, and every kind of invalid file. All numbers are invented.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::PodArrival;
use berth_test_support::published;

const AZURE: &str = "vmId,tenantId,cores,ram,vmTypeId,starttime,endtime\n";
const OPENB: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";
const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\n";

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("memory takes everything")
}

/// Calls `read` with a file with these bytes; the path in an error becomes `FILE`.
fn with_file<T>(bytes: &[u8], read: impl Fn(&Path) -> Result<T, TraceError>) -> Result<T, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    file.write_all(bytes).expect("it can be written");
    read(file.path()).map_err(|error| error.to_string().replace(&file.path().display().to_string(), "FILE"))
}

fn trace(bytes: impl AsRef<[u8]>) -> Result<ArrivalTrace, String> {
    with_file(bytes.as_ref(), |file| read(file, None, TraceOptions::default()))
}

fn azure(rows: &str) -> Result<ArrivalTrace, String> {
    trace(format!("{AZURE}{rows}"))
}

fn openb(rows: &str) -> Result<ArrivalTrace, String> {
    trace(format!("{OPENB}{rows}"))
}

fn nodes(rows: &str) -> Result<Vec<Node>, String> {
    with_file(format!("{NODES}{rows}").as_bytes(), read_nodes)
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, String>, begins: &str) {
    let error = result.expect_err("this file should be refused");
    assert!(error.starts_with(begins), "{error:?} should begin with {begins:?}");
}

fn at(template: u32, arrives_days: f64, leaves_days: f64) -> PodArrival {
    PodArrival { template, arrives_s: arrives_days * 86_400.0, leaves_s: leaves_days * 86_400.0 }
}

#[test]
fn azure_vms_are_pods_in_order_of_arrival_and_equal_ones_share_their_spec() {
    let workload = azure(
        "1,a,200.0,28.0,0,2.0,3.0\n\
         2,b,100.0,8.0,1,-7.0,0.5\n\
         3,a,200.0,28.0,0,1.0,inf\n\
         4,c,25.5,4.5,0,1.0,\n\
         5,c,200.0,28.0,0,-3.0,-1.0\n",
    )
    .expect("the trace is right");
    assert_eq!(workload.arrivals, [at(0, 1.0, f64::INFINITY), at(2, 1.0, f64::INFINITY), at(0, 2.0, 3.0)]);
    assert_eq!(workload.running, [at(1, 0.0, 0.5)]);
    assert!(workload.notes.iter().any(|note| note.starts_with("Left out: 1 VMs")), "{:?}", workload.notes);
    let [general, compute, odd] = &workload.templates[..] else { panic!("{:?}", workload.templates) };
    let wants = |spec: &berth_model::PodSpec| {
        let requests = spec.usage.requests;
        (requests.cpu_milli, requests.memory, requests.pods)
    };
    assert_eq!(wants(general), (2000, 7 << 30, 1));
    assert_eq!(wants(compute), (1000, 2 << 30, 1));
    assert_eq!(wants(odd), (255, 9 << 27, 1));
    assert_eq!((general.tolerations.len(), compute.tolerations.len()), (0, 1));
    assert_ne!(general.node_affinity, compute.node_affinity);
    assert!(general.images.is_empty());
}

#[test]
fn widening_gives_pods_of_a_tenant_one_image_of_so_many() {
    let rows: String = (0..200).map(|at| format!("{at},tenant{},100,14,0,{at},inf\n", at % 50)).collect();
    let text = format!("{AZURE}{rows}");
    let wide = |widen| {
        with_file(text.as_bytes(), |file| read(file, None, TraceOptions { widen }))
            .expect("the trace is right")
    };
    assert_eq!(wide(0).templates.len(), 1);
    let workload = wide(8);
    assert_eq!(workload.templates.len(), 8, "50 tenants use all images");
    for at in 0..50 {
        assert_eq!(workload.arrivals[at].template, workload.arrivals[at + 150].template);
    }
    // The hash is the same in all versions.
    assert_eq!(*workload.templates[0].images[0], *"tenant-6:latest");
}

#[test]
fn openb_pods_ask_for_parts_of_gpus_and_models() {
    let workload = openb(
        "p0,12000,16384,1,460,,LS,Running,50,60,50\n\
         p1,1000,1024,8,1000,V100M32|T4|T4,BE,Pending,10,,\n\
         p2,1000,1024,0,0,,BE,Failed,10,10,10\n",
    )
    .expect("the trace is right");
    let seconds: Vec<_> = workload.arrivals.iter().map(|r| (r.template, r.arrives_s, r.leaves_s)).collect();
    assert_eq!(seconds, [(1, 10.0, f64::INFINITY), (2, 10.0, 10.0), (0, 50.0, 60.0)]);
    let gpu = |at: usize| workload.templates[at].usage.extended.get("nvidia.com/gpu-milli");
    assert_eq!([gpu(0), gpu(1), gpu(2)], [460, 8000, 0]);
    let terms = |at: usize| workload.templates[at].node_affinity.required.as_ref().map(|terms| terms.len());
    assert_eq!([terms(0), terms(1), terms(2)], [None, Some(2), None]);
    assert_ne!(workload.templates[0].tolerations, workload.templates[1].tolerations);
}

#[test]
fn every_pod_may_go_to_the_machine_of_its_workload() {
    let pods = openb("p0,1,1,1,1000,T4|A10,LS,Running,0,,\np1,1,1,1,1000,New,LS,Running,0,,\n");
    let vms = azure("1,a,100,4,0,0,1\n2,a,100,14,0,0,1\n3,a,100,64,1,0,1\n");
    for workload in [pods.expect("the trace is right"), vms.expect("the trace is right")] {
        let node = &workload.machine.node;
        for spec in &workload.templates {
            let terms = spec.node_affinity.required.iter().flatten().count();
            let met = spec.node_affinity.required.iter().flatten().filter(|t| t.matches("n0", &node.labels));
            assert_eq!((terms, node.taints.len()), (met.count(), 0), "{spec:?}");
        }
    }
}

#[test]
fn nodes_have_the_labels_that_pods_ask_for() {
    let nodes = nodes("b,96000,393216,8,G2\na,32000,262144,0,\n").expect("the list is right");
    assert_eq!(nodes.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((nodes[0].allocatable.cpu_milli, nodes[0].allocatable.memory), (96_000, 384 << 30));
    let gpus = |at: usize| nodes[at].extended.get("nvidia.com/gpu-milli");
    assert_eq!((gpus(0), gpus(1)), (8000, 0));
    assert_eq!(nodes[0].labels.get("berth.dev/gpu.G2"), Some("true"));
    assert_eq!((nodes[0].labels.len(), nodes[1].labels.len()), (4, 3));
}

#[test]
fn gzip_is_known_by_its_content_and_may_have_several_parts() {
    let row = "1,a,100,14,0,0,1\n";
    let whole = gzip(&format!("{AZURE}{row}"));
    assert_eq!(trace(&whole).expect("the trace is right").arrivals.len(), 1);
    let parts = [whole, gzip(row)].concat();
    assert_eq!(trace(parts).expect("the trace is right").arrivals.len(), 2);
}

#[test]
fn columns_may_come_in_any_order_with_quotes_spaces_and_windows_line_ends() {
    let text =
        "\u{feff}endtime,starttime,\"vmTypeId\",ram,cores,tenantId, vmId\r\n\r\n1,0,\"0\",14,100,a,1\r\n";
    let workload = trace(text).expect("the trace is right");
    assert_eq!(workload.arrivals, [at(0, 0.0, 1.0)]);
    assert_refused(
        trace(format!("{text}\r\n1,0,0,x,100,a,1\r\n")),
        "FILE:5: ram is \"x\", expected a number",
    );
}

#[test]
fn a_file_that_cannot_be_opened_or_read_is_named() {
    let missing = PathBuf::from("no/such/trace.csv");
    let error = read(&missing, None, TraceOptions::default()).expect_err("there is no such file");
    assert_eq!(error.to_string(), "cannot open no/such/trace.csv");
    assert!(
        std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("No such file"))
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let error = read_nodes(folder.path()).expect_err("a folder is no file");
    assert!(error.to_string().starts_with("cannot open "), "{error}");
    assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("directory")));
}

#[test]
fn damaged_gzip_is_told_from_gzip_that_is_cut_off() {
    let rows: String =
        (0..5000).map(|at| format!("{at},t{},100,14,0,{at},inf\n", at * 7919 % 1000)).collect();
    let whole = gzip(&format!("{AZURE}{rows}"));
    let error = trace(&whole[..whole.len() / 2]).expect_err("half of it is missing");
    assert!(error.contains(": the gzip file is cut off here"), "{error}");
    let line: u64 = error.split(':').nth(1).and_then(|line| line.parse().ok()).expect("there is a line");
    assert!((1000..5000).contains(&line), "{error}");
    assert_refused(trace(&whole[..whole.len() - 4]), "FILE:5002: the gzip file is cut off here");

    let mut bad_sum = whole.clone();
    let crc = whole.len() - 8;
    bad_sum[crc] ^= 1;
    assert_refused(trace(bad_sum), "FILE:5002: the gzip file is damaged");
    assert_refused(trace([&[0x1f, 0x8b][..], &[7; 100]].concat()), "FILE:1: the gzip file is damaged");
    assert_refused(trace([&whole[..10], &[0xff; 100]].concat()), "FILE:1: the gzip file is damaged");
    assert_refused(trace([&whole[..], b"garbage"].concat()), "FILE:5002: the gzip file is ");
}

#[test]
fn a_file_without_requests_is_refused() {
    assert_refused(trace(""), "FILE:1: the file is empty: it should begin with vmId,");
    assert_refused(trace("\n\n"), "FILE:2: the file is empty");
    assert_refused(trace(gzip("")), "FILE:1: the file is empty");
    assert_refused(azure(""), "FILE:1: there is nothing after the header");
    assert_refused(nodes(""), "FILE:1: there is nothing after the header");
    assert_refused(azure("1,a,100,14,0,-2,-1\n2,a,100,14,0,-2,3\n"), "FILE:3: no request arrives");
}

#[test]
fn a_header_of_no_format_is_refused_with_its_columns() {
    let odd = AZURE.replace("ram", "memory").replace("endtime", "endtime,disk,disk");
    assert_refused(
        trace(format!("{odd}1\n")),
        "FILE:1: unknown columns memory, disk, disk; missing columns ram; repeated columns disk: the header should be vmId,",
    );
    assert_refused(trace("a;b\n1;2\n"), "FILE:1: no column of a known format: the header should be vmId,");
    assert_refused(trace(format!("{NODES}n,1,1,0,\n")), "FILE:1: this is a list of nodes, but vmId,");
    let read_openb = |file: &Path| read(file, Some(TraceFormat::Openb), TraceOptions::default());
    let other = with_file(AZURE.as_bytes(), read_openb);
    assert_refused(other, "FILE:1: this is azure-packing, but name,");
    let escape = trace("vmId,\u{1b}[31m\n").expect_err("this is no header");
    assert!(!escape.contains('\u{1b}'), "{escape:?}");
}

#[test]
fn a_line_that_is_no_row_is_refused() {
    assert_refused(azure("1,a,100,14,0,0,1\n2,a,100\n"), "FILE:3: 3 values, but the header names 7 columns");
    assert_refused(azure("1,a,100,14,0,0,1,9\n"), "FILE:2: 8 values");
    let latin = [AZURE.as_bytes(), b"1,M\xfcller,100,14,0,0,1\n"].concat();
    assert_refused(trace(latin), "FILE:2: byte 4 of the line is not UTF-8");
    assert_refused(trace([b'a'; 100_000]), "FILE:1: a line of more than 65536 bytes");
}

#[test]
fn values_of_azure_that_make_no_sense_are_refused() {
    for (row, problem) in [
        ("1,a,many,14,0,0,1", "cores is \"many\", expected a number"),
        ("1,a,,14,0,0,1", "cores is \"\", expected a number"),
        ("1,a,NaN,14,0,0,1", "cores is \"NaN\", expected a number"),
        ("1,a,-1,14,0,0,1", "cores is \"-1\", expected 0 or more"),
        ("1,a,100,-14,0,0,1", "ram is \"-14\", expected 0 or more"),
        ("1,a,inf,14,0,0,1", "cores is \"inf\", expected less than "),
        ("1,a,100,5e6,0,0,1", "ram is \"5e6\", expected less than 4194304"),
        ("1,a,100,14,7,0,1", "vmTypeId is \"7\", expected the priority: 0 (high) or 1 (low)"),
        ("1,a,100,14,0.5,0,1", "vmTypeId is \"0.5\", expected a whole number"),
        ("1,a,100,14,0,NaN,1", "starttime is \"NaN\", expected a number"),
        ("1,a,100,14,0,inf,inf", "starttime is \"inf\", expected a finite time"),
        ("1,a,100,14,0,-inf,1", "starttime is \"-inf\", expected a finite time"),
        ("1,a,100,14,0,1e308,inf", "starttime is \"1e308\", expected days"),
        ("1,a,100,14,0,,1", "starttime is \"\", expected a number"),
        ("1,a,100,14,0,2,1", "endtime is \"1\", expected a time that is not before the start (2)"),
        ("1,a,100,14,0,2,-inf", "endtime is \"-inf\", expected a time that is not before"),
        ("1,a,100,14,0,2,NaN", "endtime is \"NaN\", expected a number"),
    ] {
        assert_refused(azure(&format!("1,a,100,14,0,0,1\n{row}\n")), &format!("FILE:3: {problem}"));
    }
}

#[test]
fn values_of_openb_that_make_no_sense_are_refused() {
    for (row, problem) in [
        ("p,-1,1,0,0,,LS,Running,0,1,0", "cpu_milli is \"-1\", expected 0 or more"),
        ("p,1,x,0,0,,LS,Running,0,1,0", "memory_mib is \"x\", expected a number"),
        ("p,1,1e12,0,0,,LS,Running,0,1,0", "memory_mib is \"1e12\", expected less than 1073741824"),
        ("p,1,1,-1,0,,LS,Running,0,1,0", "num_gpu is \"-1\", expected 0 or more"),
        ("p,1,1,0.5,0,,LS,Running,0,1,0", "num_gpu is \"0.5\", expected a whole number"),
        ("p,1,1,1e9,1e9,,LS,Running,0,1,0", "num_gpu is \"1e9\", expected no more than 1000"),
        ("p,1,1,1,inf,,LS,Running,0,1,0", "gpu_milli is \"inf\", expected "),
        ("p,1,1,0,0,,LS,Running,-1,1,0", "creation_time is \"-1\", expected 0 or more seconds"),
        ("p,1,1,0,0,,LS,Running,inf,,0", "creation_time is \"inf\", expected a finite time"),
        ("p,1,1,0,0,,LS,Running,5,4,0", "deletion_time is \"4\", expected a time that is not before"),
    ] {
        assert_refused(openb(&format!("{row}\n")), &format!("FILE:2: {problem}"));
    }
}

#[test]
fn nodes_that_make_no_sense_are_refused() {
    for (row, problem) in [
        ("a,1,1,0,", "sn is \"a\", expected another name: line 2 has this one"),
        (",1,1,0,", "sn is \"\", expected the name of the node"),
        ("b,-1,1,0,", "cpu_milli is \"-1\", expected 0 or more"),
        ("b,1,-1,0,", "memory_mib is \"-1\", expected 0 or more"),
        ("b,1,1,-8,T4", "gpu is \"-8\", expected 0 or more"),
        ("b,1,1,1001,T4", "gpu is \"1001\", expected no more than 1000"),
        ("b,1e300,1,0,", "cpu_milli is \"1e300\", expected less than "),
    ] {
        assert_refused(nodes(&format!("a,1,1,0,\n{row}\n")), &format!("FILE:3: {problem}"));
    }
}

#[test]
fn the_published_azure_samples_have_their_known_counts() {
    for (at, running, arrivals, classes, wide) in
        [(0, 7023, 45_291, 108, 1222), (1, 6874, 43_981, 113, 1231), (2, 7909, 46_259, 116, 1226)]
    {
        let Some(file) = published(&format!("azure-packing/batched-1pct-{at}.csv.gz")) else { return };
        let read = |widen| read(&file, None, TraceOptions { widen }).expect("the trace is right");
        let workload = read(0);
        assert_eq!((workload.running.len(), workload.arrivals.len()), (running, arrivals));
        assert_eq!(workload.templates.len(), classes);
        assert!((13.9..14.0).contains(&(workload.span_s() / 86_400.0)));
        assert_eq!(read(20).templates.len(), wide);
    }
}

#[test]
fn the_published_openb_lists_have_their_known_counts() {
    // The second file has 477 different lines, of which ten name a model twice.
    for (file, classes) in [("default", 162), ("gpuspec33", 467)] {
        let Some(file) = published(&format!("alibaba-openb/openb_pod_list_{file}.csv")) else { return };
        let workload = read(&file, None, TraceOptions::default()).expect("the trace is right");
        assert_eq!((workload.arrivals.len(), workload.running.len()), (8152, 0));
        assert_eq!(workload.templates.len(), classes);
        // Sparse in time: the peak demand is 66 GPUs.
        assert_eq!(workload.nodes_for_peak(0.9), 10);
    }
    let Some(file) = published("alibaba-openb/openb_node_list_all_node.csv") else { return };
    let nodes = read_nodes(&file).expect("the list is right");
    let gpus: i64 = nodes.iter().map(|node| node.extended.get("nvidia.com/gpu-milli")).sum();
    assert_eq!((nodes.len(), gpus), (1523, 6_212_000));
}
