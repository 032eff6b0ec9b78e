use proptest::prelude::*;

use crate::split::ELEMENT_BYTES_MAX;
use crate::{DecodeError, Decoder, LabelNames, ResponseSummary, ResultType, Series, Skip};

/// Namespace, pod and container with slashes between, and samples.
type Got = (String, Vec<(f64, f64)>);

/// Decodes `answer` in the pieces that it is cut into at `cuts`, offsets in any order.
fn decode_as(
    expected: ResultType,
    answer: &[u8],
    cuts: &[usize],
) -> (Vec<Got>, Result<ResponseSummary, DecodeError>) {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (answer.len() + 1)).collect();
    cuts.extend([0, answer.len()]);
    cuts.sort_unstable();
    let mut series = Vec::new();
    let mut decoder = Decoder::new(expected, LabelNames::modern());
    let keep = |Series { namespace, pod, container, samples }: Series<'_>| {
        let samples = samples.iter().map(|sample| (sample.at, sample.value)).collect();
        series.push((format!("{namespace}/{pod}/{container}"), samples));
    };
    let mut keep = keep;
    for piece in cuts.windows(2) {
        if let Err(error) = decoder.push(&answer[piece[0]..piece[1]], &mut keep) {
            return (series, Err(error));
        }
    }
    let outcome = decoder.finish();
    (series, outcome)
}

fn decode(answer: &str) -> (Vec<Got>, Result<ResponseSummary, DecodeError>) {
    decode_as(ResultType::Matrix, answer.as_bytes(), &[])
}

fn error(answer: &str) -> DecodeError {
    decode(answer).1.unwrap_err()
}

fn matrix(elements: &str) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"matrix","result":[{elements}]}}}}"#)
}

fn metric(pod: &str) -> String {
    format!(r#""metric":{{"namespace":"n","pod":"{pod}","container":"c"}}"#)
}

const TWO: &str = r#"{"status":"success","isPartial":false,"data":{"resultType":"matrix","result":[
    {"metric":{"__name__":"m","namespace":"n","pod":"p","container":"c","id":"/k/[}\\\"{"},"values":[[1700000000,"0.5"],[1700003600.25,"1e3"]]},
    {"values":[[1700000000,"7"]],"histograms":[[1,{"count":"1"}]],"metric":{"container":"d","pod":"q","namespace":"caf\u00e9"}}
],"stats":{"timings":{"evalTotalTime":0.1}}},"warnings":["half of it is missing"],"infos":["is it a counter?"]}
"#;

fn two() -> (Vec<Got>, ResponseSummary) {
    let series = vec![
        ("n/p/c".to_owned(), vec![(1_700_000_000.0, 0.5), (1_700_003_600.25, 1_000.0)]),
        ("café/q/d".to_owned(), vec![(1_700_000_000.0, 7.0)]),
    ];
    let answer = ResponseSummary {
        series: 2,
        samples: 3,
        warnings: vec!["half of it is missing".to_owned()],
        infos: vec!["is it a counter?".to_owned()],
        ..ResponseSummary::default()
    };
    (series, answer)
}

#[test]
fn series_warnings_and_hints_are_read() {
    let (series, answer) = decode(TWO);
    assert_eq!((series, answer.unwrap()), two());
}

#[test]
fn the_order_of_keys_does_not_matter() {
    let answer = r#" {"data" : {"result":[{"values":[[1,"2"]],"metric":{"container":"c","namespace":"n","pod":"p"}}],
        "resultType":"matrix"},"other":[{"a":"]"}],"n":null,"x":-1.5e3,"status":"success"} "#;
    let (series, outcome) = decode(answer);
    assert_eq!(series, [("n/p/c".to_owned(), vec![(1.0, 2.0)])]);
    assert_eq!(outcome.unwrap().series, 1);
}

#[test]
fn an_empty_result_is_no_error() {
    assert_eq!(decode(&matrix("")), (Vec::new(), Ok(ResponseSummary::default())));
}

#[test]
fn an_instant_answer_has_one_sample_a_series() {
    let element = format!(r#"{{{},"value":[1.5,"2"]}}"#, metric("p"));
    let answer = matrix(&element).replace("matrix", "vector");
    let (series, outcome) = decode_as(ResultType::Vector, answer.as_bytes(), &[]);
    assert_eq!(series, [("n/p/c".to_owned(), vec![(1.5, 2.0)])]);
    assert_eq!(outcome.unwrap().samples, 1);
}

#[test]
fn what_prometheus_refuses_is_told_in_its_words() {
    let refused = r#"{"status":"error","errorType":"bad_data","error":"parse error: \"x\""}"#;
    assert_eq!(error(refused).to_string(), r#"bad_data: parse error: "x""#);
    let late = r#"{"error":"it broke","data":{"resultType":"matrix","result":[]},"errorType":"internal","status":"error"}"#;
    assert_eq!(error(late).to_string(), "internal: it broke");
}

#[test]
fn another_type_of_result_is_an_error() {
    for (result, found) in [
        (r#""resultType":"vector","result":[]"#, "vector"),
        (r#""resultType":"scalar","result":[1,"2"]"#, "scalar"),
        (r#""result":[1,"2"],"resultType":"string""#, "string"),
        (r#""resultType":"matrix","result":null"#, "missing result"),
        (r#""resultType":"matrix""#, "missing result"),
        (r#""result":[]"#, "missing result"),
    ] {
        let error = error(&format!(r#"{{"status":"success","data":{{{result}}}}}"#));
        assert_eq!(error, DecodeError::WrongType { expected: "matrix", found: found.to_owned() }, "{result}");
    }
}

#[test]
fn json_that_is_not_prometheus_and_text_that_is_not_json_are_errors() {
    assert_eq!(error("{}"), DecodeError::NotPrometheus { status: String::new() });
    assert_eq!(error(r#"{"status":503,"data":[]}"#), DecodeError::NotPrometheus { status: "503".to_owned() });
    assert_eq!(error("\n<!DOCTYPE html>"), DecodeError::NotJson { at: 1, found: '<' });
    assert_eq!(error(r#"{"status" "success"}"#), DecodeError::NotJson { at: 10, found: '"' });
    assert_eq!(error(&format!("{}x", matrix(""))), DecodeError::NotJson { at: 63, found: 'x' });
    assert_eq!(error(r#"{"data":{"result":[}]}}"#), DecodeError::NotJson { at: 19, found: '}' });
}

#[test]
fn an_answer_that_breaks_off_anywhere_says_so() {
    let whole = TWO.trim_end();
    for bytes in 0..whole.len() {
        let (series, outcome) = decode_as(ResultType::Matrix, &whole.as_bytes()[..bytes], &[]);
        assert_eq!(outcome, Err(DecodeError::Truncated { bytes: bytes as u64 }));
        assert!(two().0.starts_with(&series), "{bytes}");
    }
}

#[test]
fn bad_series_and_samples_are_skipped_and_counted_and_the_others_read() {
    let elements = [
        format!(r#"{{{},"values":[[1,"1"]]}}"#, metric("first")),
        r#"{"metric":{"namespace":"n","pod":"p"},"values":[[1,"1"]]}"#.to_owned(),
        r#"{"metric":{"namespace":"n","pod":"","container":"c"},"values":[[1,"1"]]}"#.to_owned(),
        r#"{"values":[[1,"1"]]}"#.to_owned(),
        format!(r#"{{{},"values":[[1,2]]}}"#, metric("no-text")),
        format!(r#"{{{},"values":[["1","2"]]}}"#, metric("no-time")),
        format!(r#"{{{},"values":[[1,"2",3]]}}"#, metric("three")),
        format!(r#"{{{},"values":{{}}}}"#, metric("no-list")),
        format!(r#"{{{},"value":[1,"2"]}}"#, metric("of-a-vector")),
        format!(r#"{{{},"values":[[1,"2"],]}}"#, metric("no-json")),
        "7".to_owned(),
        "null".to_owned(),
        format!(r#"{{{},"values":[]}}"#, metric("empty")),
        format!(r#"{{{},"values":[[1,"NaN"],[2,"+Inf"],[3,"-Inf"]]}}"#, metric("nothing-left")),
        format!(
            r#"{{{},"values":[[1,"1"],[2,"two"],[3,"NaN"],[3,"3"],[3,"4"],[2,"5"],[4,"+Inf"],[5,"6"]]}}"#,
            metric("last")
        ),
    ];
    let (series, outcome) = decode(&matrix(&elements.join(",")));
    assert_eq!(
        series,
        [
            ("n/first/c".to_owned(), vec![(1.0, 1.0)]),
            ("n/last/c".to_owned(), vec![(1.0, 1.0), (3.0, 3.0), (5.0, 6.0)])
        ]
    );
    let answer = outcome.unwrap();
    assert_eq!((answer.series, answer.samples), (2, 4));
    let skipped = Skip::ALL.map(|reason| answer.skipped.get(reason));
    // Missing label, malformed, too long, not a number, not finite, out of order.
    assert_eq!(skipped, [3, 8, 0, 1, 5, 2]);
}

#[test]
fn a_series_without_end_takes_no_memory_and_is_skipped() {
    let mut decoder = Decoder::new(ResultType::Matrix, LabelNames::modern());
    let mut names = Vec::new();
    let whole = matrix("#");
    let (before, after) = whole.split_once('#').unwrap();
    let start = format!(r#"{before}{{{},"values":[[0,"0"]"#, metric("long"));
    let sample = r#",[1700000000,"12345678"]"#.repeat(100_000);
    let end = format!(r#"]}},{{{},"values":[[1,"1"]]}}{after}"#, metric("short"));
    assert!(4 * sample.len() > ELEMENT_BYTES_MAX);
    for piece in [&start, &sample, &sample, &sample, &sample, &end] {
        decoder.push(piece.as_bytes(), |series: Series<'_>| names.push(series.pod.to_owned())).unwrap();
    }
    let answer = decoder.finish().unwrap();
    assert_eq!(names, ["short"]);
    assert_eq!(answer.skipped.get(Skip::TooLong), 1);
}

proptest! {
    #[test]
    fn whatever_the_pieces_an_answer_comes_in_it_says_the_same(cuts in prop::collection::vec(0_usize..2_000, 0..40)) {
        let (series, answer) = decode_as(ResultType::Matrix, TWO.as_bytes(), &cuts);
        prop_assert_eq!((series, answer.unwrap()), two());
    }

    #[test]
    fn pieces_of_one_byte_say_the_same(answer in made_up()) {
        let cuts: Vec<usize> = (0..answer.len()).collect();
        let whole = decode_as(ResultType::Matrix, answer.as_bytes(), &[]);
        prop_assert_eq!(decode_as(ResultType::Matrix, answer.as_bytes(), &cuts), whole);
    }

    #[test]
    fn damaged_answers_never_panic_and_say_the_same_in_any_pieces(
        at in 0_usize..600, byte in any::<u8>(), cuts in prop::collection::vec(0_usize..2_000, 0..10),
    ) {
        let mut answer = TWO.as_bytes().to_vec();
        let at = at % answer.len();
        answer[at] = byte;
        let whole = decode_as(ResultType::Matrix, &answer, &[]);
        prop_assert_eq!(decode_as(ResultType::Matrix, &answer, &cuts), whole);
    }
}

/// Generates responses with random series and values, some of them bad.
fn made_up() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        any::<f64>().prop_map(|value| format!("{value:e}")),
        Just("NaN".to_owned()),
        Just("+Inf".to_owned()),
        "[0-9a-z.]{0,5}",
    ];
    let samples = prop::collection::vec((0_u32..1_000, value), 0..6);
    let text = r#"[a-z"\\\[\]{},: é]{0,4}"#;
    let series = (text, text, samples).prop_map(|(pod, container, samples)| {
        let samples: Vec<_> = samples.into_iter().map(|(at, value)| (f64::from(at) / 4.0, value)).collect();
        serde_json::json!({"metric": {"namespace": "n", "pod": pod, "container": container}, "values": samples})
    });
    prop::collection::vec(series, 0..5).prop_map(|result| {
        let data = serde_json::json!({"resultType": "matrix", "result": result});
        serde_json::json!({"status": "success", "data": data}).to_string()
    })
}

#[test]
fn values_are_read_to_the_last_bit() {
    for value in
        [0.1 + 0.2, f64::MIN_POSITIVE, 1.797_693_134_862_315_7e308, 0.004_444_444_444_444_444, 5e-324]
    {
        let element = format!(r#"{{{},"values":[[1700000000.123,"{value:e}"]]}}"#, metric("p"));
        let (series, _) = decode(&matrix(&element));
        assert_eq!(series[0].1, [(1_700_000_000.123, value)]);
    }
}
