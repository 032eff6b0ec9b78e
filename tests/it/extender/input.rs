//! Bad requests: each gets an answer that names the error, and leaves no lasting cost.

use super::*;

const POD: &str =
    r#"{"metadata":{"name":"p","namespace":"default","uid":"u"},"spec":{"containers":[{"name":"c"}]}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_sent_is_answered_as_the_protocol_wants_it() {
    let cluster = start_control_plane().await;
    create_nodes(&cluster.client(), &Nodes { count: 2, ..Nodes::default() }).await;
    let berth = Berth::start(
        &cluster.kubeconfig(),
        "extender: {enabled: true, plaintext: true, maxBodyBytes: 1048576}",
    );
    berth.await_ready().await;
    let both = format!(r#"{{"Pod":{POD},"Nodes":{{"items":[]}},"NodeNames":["node-0"]}}"#);
    let huge = format!(r#"{{"Pod":{POD},"NodeNames":["{}"]}}"#, "x".repeat(1 << 20));
    let bad_pod = r#"{"Pod":{"metadata":{},"spec":{"containers":[{"resources":{"requests":{"cpu":"much"}}}]}},"NodeNames":["node-0"]}"#;
    for (verb, body, status, text) in [
        ("filter", "", 400, "not a JSON object"),
        ("filter", r#"{"Pod":{"#, 400, "not a JSON object"),
        ("filter", "[]", 400, "not a JSON object"),
        ("filter", "{}", 200, r#""Error":"Pod is missing""#),
        ("filter", r#"{"Pod":7,"NodeNames":[]}"#, 200, r#""Error":"Pod: invalid type"#),
        ("filter", both.as_str(), 200, "both Nodes and NodeNames are given"),
        ("filter", bad_pod, 200, "the pod's spec is invalid"),
        ("filter", huge.as_str(), 413, "longer than 1048576 bytes"),
        ("prioritize", "{}", 400, "Pod is missing"),
        ("prioritize", both.as_str(), 400, "both Nodes and NodeNames are given"),
        ("prioritize", bad_pod, 422, "the pod's spec is invalid"),
        ("bind", "{}", 200, r#"{"Error":"PodName is missing"}"#),
        (
            "bind",
            r#"{"PodName":"p","PodNamespace":"../x","PodUID":"u","Node":"node-0"}"#,
            200,
            "pod with uid u not found",
        ),
        ("bind", "7", 400, "not a JSON object"),
        (
            "preempt",
            r#"{"Pod":{"metadata":{}},"NodeNameToMetaVictims":{"a":{"Pods":[{}]}}}"#,
            400,
            "a victim has no UID",
        ),
        ("nothing", "{}", 404, ""),
    ] {
        let (answered, answer) = post(&berth, verb, body.to_owned()).await;
        let short = &body[..body.len().min(80)];
        assert!(answered == status && answer.contains(text), "{verb} {short}: {answered} {answer}");
    }
    let (status, _) = post(&berth, "filter", vec![0xff, 0xfe]).await;
    assert_eq!(status, 400);

    // Nodes known to only one of the two fail individually, without an error.
    let unknown = format!(r#"{{"pod":{POD},"nodenames":["node-1","elsewhere","node-0"]}}"#);
    let (_, answer) = post(&berth, "filter", unknown).await;
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["NodeNames"], json!(["node-1", "node-0"]));
    assert_eq!(answer["FailedNodes"], json!({"elsewhere": "node(s) were not known to berth yet"}));
    assert_eq!(answer["Error"], "");
}

/// `BERTH_BAD_REQUESTS=1000000` for a million.
#[tokio::test(flavor = "multi_thread")]
async fn many_bad_requests_leave_no_memory_behind() {
    let total: usize =
        std::env::var("BERTH_BAD_REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let cluster = start_control_plane().await;
    create_nodes(&cluster.client(), &Nodes { count: 2, ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let (url, http) = (url_of(&berth).await, reqwest::Client::new());
    let send = |at: usize| {
        // All different, so that no result can be cached: truncated ones, wrong types, unknown pods and nodes, and
        // well-formed ones of classes that are not requested again.
        let body = match at % 5 {
            0 => format!(r#"{{"Pod":{{"metadata":{{"name":"p{at}"#),
            1 => format!(r#"{{"Pod":{at},"NodeNames":["node-{at}"]}}"#),
            2 => format!(r#"{{"PodName":"p{at}","PodNamespace":"default","PodUID":"u{at}","Node":7}}"#),
            3 => format!(
                r#"{{"Pod":{{"metadata":{{"name":"p{at}"}},"spec":{{"nodeSelector":{{"a":"{at}"}}}}}},"NodeNames":["n{at}"]}}"#
            ),
            _ => format!(r#"{{"Pod":{{"spec":{{"containers":"{at}"}}}},"NodeNames":[]}}"#),
        };
        let verb = if at % 5 == 2 { "bind" } else { "filter" };
        let request = http.post(format!("{url}/{verb}")).body(body);
        async move { request.send().await.expect("berth answers").bytes().await.expect("a body").len() }
    };
    use futures::StreamExt;
    let run = async |range: std::ops::Range<usize>| {
        let answers = futures::stream::iter(range).map(send).buffer_unordered(16);
        answers.fold(0, async |sum, length| sum + length).await
    };
    // All bounded caches are full by now: classes and lists.
    let warm = total / 2;
    run(0..warm).await;
    let before = berth.resident_bytes();
    run(warm..total).await;
    let grown = berth.resident_bytes().saturating_sub(before);
    // A leak of 100 bytes per request is detected from 100,000 requests on; below that the allocator's noise is
    // larger.
    let allowed = (8 << 20).max((total - warm) as u64 * 100);
    assert!(grown < allowed, "{} requests left {grown} bytes", total - warm);
}
