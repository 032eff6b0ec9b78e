//! Tests of the command against a fake Prometheus.

mod cluster;

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use clap::Parser;
use serde_json::{Value, json};

use super::values::{cpu, duration, memory, shown};
use super::{Answer, EstimatorKind, Failure, RecommendOptions, address, backtest, prometheus};
use crate::cli::{Cli, Command};
use berth_model::ConfigDuration;
use berth_test_support::prometheus::{Fake, RecordedRequest, error, install_provider, matrix, vector};

const NOW: &str = "2023-11-14T22:13:20Z";

fn options(url: &str, more: &[&str]) -> RecommendOptions {
    let given = ["berth", "recommend", "--prometheus", url, "--at", NOW];
    let history: &[&str] = if more.contains(&"--history") { &[] } else { &["--history", "2d"] };
    let cli = Cli::try_parse_from(given.iter().chain(history).chain(more)).expect("options");
    let Command::Recommend(options) = cli.command else { panic!("another command") };
    *options
}

/// Runs as the command does, with its own runtime.
async fn answer(url: &str, more: &[&str]) -> Result<Answer, Failure> {
    install_provider();
    let options = options(url, more);
    let run = move || match &options.backtest {
        Some(files) => backtest::answer(&options, files),
        None => prometheus::answer(&options),
    };
    tokio::task::spawn_blocking(run).await.expect("it ends")
}

/// Returns the exit code and the message.
fn refusal(answer: Result<Answer, Failure>) -> (u8, String) {
    match answer {
        Ok(answer) => panic!("an answer: {}", answer.text),
        Err(Failure::Input(error)) => (2, format!("{error:#}")),
        Err(Failure::Other(error)) => (1, format!("{error:#}")),
    }
}

/// Pod `web-59f9fb6b8-x2x4z` with a container `app` that uses 0.4 cores and 400 MiB.
fn usage(asked: &RecordedRequest) -> String {
    let value = if asked.is_cpu() { "0.4" } else { "419430400" };
    let values: Vec<String> = asked.times().iter().map(|time| format!(r#"[{time},"{value}"]"#)).collect();
    matrix(&format!(
        r#"{{"metric":{{"namespace":"shop","pod":"web-59f9fb6b8-x2x4z","container":"app"}},"values":[{}]}}"#,
        values.join(",")
    ))
}

/// Series of kube-state-metrics.
fn facts(asked: &RecordedRequest) -> String {
    let query = asked.query();
    let one = |labels: &str, value: f64| {
        vector(&format!(r#"{{"metric":{{"namespace":"shop",{labels}}},"value":[1,"{value}"]}}"#))
    };
    let owner = |object: &str, owner: &str| one(&format!(r#"{object},"berth_owner":"{owner}""#), 1.0);
    let container = r#""pod":"web-59f9fb6b8-x2x4z","container":"app""#;
    match query {
        _ if query.contains("kube_pod_owner") => {
            owner(r#""pod":"web-59f9fb6b8-x2x4z""#, "ReplicaSet/web-59f9fb6b8")
        }
        _ if query.contains("kube_replicaset_owner") => {
            owner(r#""replicaset":"web-59f9fb6b8""#, "Deployment/web")
        }
        _ if query.contains("resource_requests") && query.contains(r#"resource="cpu""#) => {
            one(container, 2.0)
        }
        _ if query.contains("resource_limits") && query.contains(r#"resource="memory""#) => {
            one(container, 4294967296.0)
        }
        _ => vector(""),
    }
}

fn is_usage(asked: &RecordedRequest) -> bool {
    asked.path.ends_with("query_range")
}

fn respond(asked: &RecordedRequest, facts: impl Fn(&RecordedRequest) -> Response) -> Response {
    match asked {
        _ if is_usage(asked) => usage(asked).into_response(),
        _ if asked.is_count() || asked.query() == "vector(1)" => asked.answer().into_response(),
        _ => facts(asked),
    }
}

#[tokio::test]
async fn from_the_address_alone_comes_advice_on_every_container() {
    let fake = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
    let Answer { text, complete } = answer(&fake.url, &["-o", "json"]).await.ok().expect("an answer");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert!(complete);
    let [web] = &json["containers"].as_array().expect("a list")[..] else { panic!("{json}") };
    let fields =
        ["severity", "namespace", "kind", "workload", "guessed", "container", "pods", "days", "samples"];
    assert_eq!(
        fields.map(|field| web[field].clone()),
        [
            json!("critical"),
            json!("shop"),
            json!("Deployment"),
            json!("web"),
            json!(false),
            json!("app"),
            json!(1),
            json!(2.0),
            json!(577)
        ]
    );
    assert_eq!((&web["cpu"]["request"], &web["cpu"]["limit"]), (&json!(2.0), &Value::Null));
    assert_eq!((&web["memory"]["request"], &web["memory"]["limit"]), (&Value::Null, &json!(4294967296_i64)));
    let target = web["cpu"]["target"].as_f64().expect("cores");
    assert!((0.46..0.5).contains(&target), "{target}");
    let asked = fake.asked();
    assert!(asked.iter().all(|asked| !asked.query().contains("namespace=")));
}

#[tokio::test]
async fn namespaces_tokens_and_labels_are_as_the_options_say() {
    let fake = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "secret\n").expect("written");
    let file = token.path().to_str().expect("a path");
    let more =
        ["--namespace", "shop,bank", "--bearer-token-file", file, "--label-set", "modern", "-o", "table"];
    let table = answer(&fake.url, &more).await.ok().expect("an answer").text;
    assert!(table.contains("deploy/web") && table.contains("2 -> 4"), "{table}");
    for asked in fake.asked() {
        assert_eq!(asked.authorization.as_deref(), Some("Bearer secret"));
        // The first request checks that there is a Prometheus at all.
        let query = asked.query();
        assert!(query == "vector(1)" || query.contains(r#"namespace=~"bank|shop""#), "{query}");
    }
}

#[tokio::test]
async fn a_user_and_the_password_of_a_file_are_sent_to_prometheus() {
    let fake = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
    let password = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(password.path(), "secret\n").expect("written");
    let file = password.path().to_str().expect("a path");
    let more = ["--user", "me", "--password-file", file, "-o", "table"];
    assert!(answer(&fake.url, &more).await.ok().expect("an answer").text.contains("deploy/web"));
    for asked in fake.asked() {
        // me:secret
        assert_eq!(asked.authorization.as_deref(), Some("Basic bWU6c2VjcmV0"));
    }
    let (code, said) =
        refusal(answer("http://localhost:9", &["--user", "me", "--password-file", "/nowhere"]).await);
    assert!(code == 1 && said.contains("--password-file"), "{said}");
}

#[tokio::test]
async fn without_kube_state_metrics_workloads_are_guessed_and_requests_unknown() {
    let fake = Fake::start(|_, asked| respond(asked, |_| vector("").into_response())).await;
    let Answer { text, complete } = answer(&fake.url, &["-o", "json"]).await.ok().expect("an answer");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    // The query succeeded with an empty result: not a failure.
    assert!(complete);
    assert_eq!(json["workloadsFrom"], "pod-names");
    let web = &json["containers"][0];
    assert_eq!(
        (&web["guessed"], &web["workload"], &web["cpu"]["request"]),
        (&json!(true), &json!("web"), &json!("?"))
    );
    let notes = json["notes"].to_string();
    assert!(notes.contains("kube_pod_container_resource_requests"), "{notes}");
}

#[tokio::test]
async fn unreadable_facts_are_reported_and_left_out() {
    let fake = Fake::start(|_, asked| respond(asked, |_| error(422, "execution", "no such function"))).await;
    let Answer { text, complete } = answer(&fake.url, &["-o", "json"]).await.ok().expect("an answer");
    assert!(!complete, "the exit code says so");
    assert!(text.contains("PodOwner could not be read") && text.contains("no such function"), "{text}");
}

#[tokio::test]
async fn errors_of_an_address_or_its_responses_name_the_command_line_options() {
    let fake = Fake::start(|_, _| StatusCode::UNAUTHORIZED).await;
    let (code, said) = refusal(answer(&fake.url, &[]).await);
    assert!(
        code == 1 && said.contains("answered 401") && said.contains("give --bearer-token-file"),
        "{said}"
    );
    let fake = Fake::start(|_, _| StatusCode::NOT_FOUND).await;
    let (code, said) = refusal(answer(&fake.url, &[]).await);
    assert!(code == 1 && said.contains("--prometheus must be the address before /api/v1"), "{said}");
    for (url, more, expected) in [
        ("prometheus:9090", &[][..], "--prometheus"),
        ("http://a@b", &[], "--prometheus"),
        ("http://localhost:9", &["--history", "3m"], "--history"),
        ("http://localhost:9", &["--resolution", "1500ms"], "--resolution"),
    ] {
        let (code, said) = refusal(answer(url, more).await);
        assert!(code == 2 && said.contains(expected) && !said.contains("prometheus."), "{url}: {said}");
    }
    let (code, said) = refusal(answer("http://localhost:9", &["--bearer-token-file", "/nowhere"]).await);
    assert!(code == 1 && said.contains("which --bearer-token-file names"), "{said}");
}

/// A Prometheus without usage; `has` selects the selectors that have series.
async fn without_usage(has: fn(&str) -> bool, more: &[&str]) -> String {
    let fake = Fake::start(move |_, asked| match asked {
        _ if is_usage(asked) => matrix(""),
        _ if asked.is_count() && has(asked.query()) => vector(r#"{"metric":{},"value":[1,"1"]}"#),
        _ => vector(""),
    })
    .await;
    let (code, said) = refusal(answer(&fake.url, more).await);
    assert_eq!(code, 1, "{said}");
    said
}

#[tokio::test]
async fn missing_usage_is_reported_with_a_remedy() {
    let said = without_usage(|_| false, &[]).await;
    assert!(
        said.contains("no container_memory_working_set_bytes") && said.contains("/metrics/cadvisor"),
        "{said}"
    );
    let said = without_usage(|_| false, &["--prometheus-label", "cluster=prod"]).await;
    assert!(
        said.contains("no container_memory_working_set_bytes with --prometheus-label cluster=prod"),
        "{said}"
    );
    let said = without_usage(|query| !query.contains("pod=~"), &["--label-set", "modern"]).await;
    assert!(said.contains("--label-set legacy"), "{said}");
    let said = without_usage(|query| !query.contains('{'), &[]).await;
    assert!(said.contains("neither the labels"), "{said}");
    let said = without_usage(|_| true, &["--namespace", "shop"]).await;
    assert!(said.contains("--namespace shop"), "{said}");
    let said = without_usage(|_| true, &[]).await;
    assert!(said.contains("--resolution"), "{said}");
}

#[tokio::test]
async fn a_prometheus_can_be_backtested() {
    let fake = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
    let text = answer(&fake.url, &["--backtest", "-o", "json"]).await.ok().expect("an answer").text;
    let json: Value = serde_json::from_str(&text).expect("JSON");
    // Two resources.
    assert_eq!(json["series"].as_array().map(Vec::len), Some(2 * EstimatorKind::ALL.len()));
    assert_eq!(
        (&json["series"][0]["name"], &json["series"][0]["overrunShare"]),
        (&json!("shop/web/app"), &json!(0.0))
    );
    let (code, said) = refusal(answer(&fake.url, &["--backtest", "-o", "csv"]).await);
    assert!(code == 2 && said.contains("table or json"), "{said}");
    let (code, said) = refusal(answer(&fake.url, &["--backtest", "--warm-up", "3d"]).await);
    assert!(code == 2 && said.contains("--warm-up (72h) plus --step (1h)"), "{said}");
    let (code, said) = refusal(answer(&fake.url, &["--backtest", "x.csv"]).await);
    assert!(code == 2 && said.contains("not both"), "{said}");
}

#[test]
fn no_message_names_a_field_of_the_configuration_file() {
    use berth_prometheus::SourceError;
    let url = || "U".to_owned();
    let errors = [
        SourceError::Unreachable { url: url(), problem: "P".into(), tries: 5 },
        SourceError::TimedOut { url: url(), timeout: Duration::from_secs(1) },
        SourceError::TooMuch { url: url(), said: "S".into() },
        SourceError::TooLong { url: url(), bytes_max: 1 },
        SourceError::Credentials { field: "bearerTokenFile", problem: "P".into() },
        SourceError::Credentials { field: "caFile", problem: "P".into() },
    ];
    for error in errors {
        let said = address::as_options(&error.to_string());
        assert!(!said.contains("prometheus."), "{said}");
    }
}

#[test]
fn durations_may_be_days_and_quantities_are_those_of_a_spec() {
    let days = |days: u64| Ok(ConfigDuration::from_secs(days * 86_400));
    assert_eq!((duration("8d"), duration("24h"), duration("365d")), (days(8), days(1), days(365)));
    for wrong in ["", "d", "8", "-1d", "366d", "1.5d", "0s", "0d", "8 d"] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
    let text = |text: &str| shown(duration(text).expect("a duration"));
    assert_eq!((text("8d"), text("24h"), text("90m")), ("8 days".into(), "day".into(), "1h30m".into()));
    assert_eq!((cpu("25m"), cpu("2"), memory("250Mi")), (Ok(25), Ok(2000), Ok(250 << 20)));
    assert!(cpu("-1").is_err() && memory("1Zi").is_err() && memory("100Pi").is_err());
}

#[tokio::test]
async fn a_cluster_and_a_tenant_can_be_named() {
    let fake = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "k\n").expect("a file");
    let key = format!("X-Api-Key=@{}", file.display());
    let more = [
        ["--prometheus-label", "cluster=prod"],
        ["--prometheus-header", "X-Scope-OrgID=team-a"],
        ["--prometheus-header", &key],
    ]
    .concat();
    answer(&fake.url, &more).await.ok().expect("an answer");
    let asked = fake.asked();
    assert!(!asked.is_empty());
    for request in asked {
        let query = request.query();
        assert!(query == "vector(1)" || query.contains(r#"cluster="prod""#), "{query}");
        assert_eq!((&*request.headers["x-scope-orgid"], &*request.headers["x-api-key"]), ("team-a", "k"));
    }
    let (code, said) = refusal(answer(&fake.url, &["--prometheus-label", "prod"]).await);
    assert!(code == 2 && said.starts_with("--prometheus-label: `prod` is not a matcher"), "{said}");
    let (code, said) = refusal(answer(&fake.url, &["--prometheus-header", "X-Api-Key=hunter2"]).await);
    assert!(code == 2 && said.contains("give NAME=@FILE") && !said.contains("hunter2"), "{said}");
}

/// A Prometheus with labels of Deployments, if `exported`: `web` has team=a.
async fn labelled(exported: bool) -> Fake {
    Fake::start(move |_, asked| {
        let query = asked.query();
        let is_labels = query.contains("kube_deployment_labels{");
        match asked {
            _ if is_labels && query.starts_with("count(") => {
                vector(if exported && query.contains("label_team") {
                    r#"{"metric":{},"value":[1,"1"]}"#
                } else {
                    ""
                })
                .into_response()
            }
            _ if is_labels && query.contains(r#"label_team="a""#) => {
                let web = r#"{"metric":{"namespace":"shop","deployment":"web"},"value":[1,"1"]}"#;
                vector(web).into_response()
            }
            _ if is_labels => vector("").into_response(),
            _ => respond(asked, |asked| facts(asked).into_response()),
        }
    })
    .await
}

#[tokio::test]
async fn a_selector_keeps_the_workloads_whose_labels_it_selects() {
    let fake = labelled(true).await;
    let count = async |selector: &str| {
        let more = ["--namespace", "shop", "--selector", selector, "-o", "json"];
        let text = answer(&fake.url, &more).await.ok().expect("an answer").text;
        let json: Value = serde_json::from_str(&text).expect("JSON");
        json["containers"].as_array().map(Vec::len)
    };
    assert_eq!(count("team=a").await, Some(1));
    assert_eq!(count("team=b").await, Some(0));
    let labels = |query: &&str| query.contains("kube_deployment_labels{");
    let asked = fake.asked();
    let queries: Vec<&str> = asked.iter().map(|asked| asked.query()).filter(labels).collect();
    let expected =
        r#"max by (namespace, deployment) (kube_deployment_labels{namespace="shop", label_team="a"})"#;
    assert!(queries.contains(&expected), "{queries:?}");
}

#[tokio::test]
async fn a_selector_by_labels_that_are_not_exported_is_refused_with_the_flag_that_exports_them() {
    let fake = labelled(false).await;
    // Also one that would select everything.
    for selector in ["team=a", "team!=a"] {
        let (code, said) = refusal(answer(&fake.url, &["--selector", selector]).await);
        assert!(
            code == 1
                && said.contains("no label team of Deployments")
                && said.contains("--metric-labels-allowlist=deployments=[team]"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn prices_come_from_an_option_or_a_file_and_a_wrong_file_stops_before_any_query() {
    let fake = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    std::fs::write(file.path(), "currency: EUR\ncpuCoreHour: 0.1\nmemoryGibHour: 0").expect("written");
    let of_file =
        answer(&fake.url, &["--price-file", path, "-o", "json"]).await.ok().expect("an answer").text;
    let json: Value = serde_json::from_str(&of_file).expect("JSON");
    // Two cores for 730 hours.
    assert_eq!((&json["monthlyCost"]["current"], &json["currency"]), (&146.0.into(), &"EUR".into()));
    assert_eq!(json["workloads"][0]["monthlyCost"], json["monthlyCost"]);
    let of_option = answer(&fake.url, &["--prices", "73,0"]).await.ok().expect("an answer").text;
    assert!(of_option.contains("they cost 146.00 -> ") && of_option.contains("COST/MONTH"), "{of_option}");
    let before = fake.asked().len();
    std::fs::write(file.path(), "cpuCoreHour: 0.1").expect("written");
    let (code, said) = refusal(answer(&fake.url, &["--price-file", path]).await);
    assert!(code == 2 && said.contains(path) && said.contains("memoryGibHour"), "{said}");
    assert_eq!(fake.asked().len(), before);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for wrong in [
        &["--prometheus", "http://a", "--context", "prod"][..],
        &["--prometheus", "http://a", "--prometheus-service", "a/b"],
        &["--prometheus-service", "prometheus"],
        &["--bearer-token-file", "token"],
        &["--prometheus", "http://a", "--cpu-column", "x"],
        &["--prometheus", "http://a", "--estimators", "vpa"],
        &["--backtest", "x.csv", "--estimators", "best"],
        &["--backtest", "x.csv", "--cpu-scale", "0"],
        &["--prometheus", "http://a", "--at", "yesterday"],
        &["--prometheus", "http://a", "--min-severity", "bad"],
        &["--prometheus", "http://a", "-o", "pdf"],
        &["--prometheus", "http://a", "--selector", "team in a"],
        &["--prometheus", "http://a", "--prices", "1,1", "--price-file", "x.yaml"],
    ] {
        let given = ["berth", "recommend"].iter().chain(wrong);
        assert!(Cli::try_parse_from(given).is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_backtest_of_files_refuses_what_only_a_prometheus_can_do() {
    install_provider();
    for (more, expected) in [
        (&["--namespace", "shop"][..], "--namespace has no effect"),
        (&["--strategy", "krr"], "--strategy has no effect"),
        (&["--context", "prod"], "not both"),
    ] {
        let given = ["berth", "recommend", "--backtest", "x.csv"];
        let cli = Cli::try_parse_from(given.iter().chain(more)).expect("options");
        let Command::Recommend(options) = cli.command else { panic!("another command") };
        let (code, said) = refusal(backtest::answer(&options, &["x.csv".into()]));
        assert!(code == 2 && said.contains(expected), "{said}");
    }
}
