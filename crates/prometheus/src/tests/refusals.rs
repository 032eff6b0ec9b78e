//! Tests of credentials and errors.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::response::IntoResponse;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use tokio::net::TcpListener;

use super::fake::{Fake, RecordedRequest, Sources, error, source};
use crate::{BasicAuth, DecodeError, PrometheusSource, QueriedNamespaces, Secret, SourceError};
use berth_test_support::prometheus::install_provider;

async fn latest(source: &PrometheusSource) -> Result<(), SourceError> {
    source.latest(QueriedNamespaces::All, Timestamp::UNIX_EPOCH, |_, _| ()).await.map(drop)
}

/// Formats an error with all causes.
fn told(error: &SourceError) -> String {
    berth_model::with_causes(error)
}

fn answered(status: u16, body: impl Into<Body>) -> Response<Body> {
    Response::builder().status(status).body(body.into()).unwrap()
}

#[tokio::test]
async fn a_token_comes_from_the_configuration_or_from_a_file_as_it_is_now() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    latest(&fake.source(|config| config.bearer_token = Some(Secret::new("abc")))).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let from_file = fake.source(|config| config.bearer_token_file = Some(file.path().to_owned()));
    for token in ["one", "two\n"] {
        std::fs::write(file.path(), token).unwrap();
        from_file.check(Timestamp::UNIX_EPOCH).await.unwrap();
    }
    let seen: Vec<String> = fake.asked().into_iter().filter_map(|asked| asked.authorization).collect();
    assert_eq!(seen, ["Bearer abc", "Bearer abc", "Bearer one", "Bearer two"]);

    std::fs::write(file.path(), " \n").unwrap();
    let error = latest(&from_file).await.unwrap_err();
    assert!(told(&error).starts_with("prometheus.bearerTokenFile cannot be used: "), "{error}");
    drop(file);
    let error = latest(&from_file).await.unwrap_err();
    assert!(matches!(error, SourceError::File { field: "bearerTokenFile", .. }), "{error}");
    assert_eq!(fake.asked().len(), 4);
}

#[tokio::test]
async fn a_user_comes_with_a_password_from_the_configuration_or_a_file() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let basic = |password: Option<Secret>, password_file| {
        Some(BasicAuth { user: "Aladdin".to_owned(), password, password_file })
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "open sesame\n").unwrap();
    latest(&fake.source(|config| config.basic_auth = basic(Some(Secret::new("open sesame")), None)))
        .await
        .unwrap();
    latest(&fake.source(|config| config.basic_auth = basic(None, Some(file.path().to_owned()))))
        .await
        .unwrap();
    // The example of RFC 7617.
    assert!(
        fake.asked()
            .iter()
            .all(|asked| asked.authorization.as_deref() == Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="))
    );
}

#[tokio::test]
async fn a_token_that_no_header_can_have_is_not_printed() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|config| config.bearer_token = Some(Secret::new("hun\nter2")));
    let error = latest(&source).await.unwrap_err();
    assert!(matches!(error, SourceError::Credentials { field: "bearerToken", .. }), "{error}");
    assert!(!format!("{error:?}").contains("ter2"));
}

#[tokio::test]
async fn an_overloaded_prometheus_is_asked_again_a_few_times() {
    for status in [429, 503] {
        let fake = Fake::start(move |number, asked: &RecordedRequest| match number {
            0 | 1 => answered(status, "busy"),
            _ => asked.answer().into_response(),
        })
        .await;
        let source = fake.source(|_| {});
        latest(&source).await.unwrap();
        assert_eq!(source.counters().retries(), 2);
        assert_eq!(source.counters().requests()[&status].count, 2);
    }
    let fake = Fake::start(|_, _| answered(503, "Service Unavailable")).await;
    let error = latest(&fake.source(|_| {})).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "Prometheus at {} answered 503 (Service Unavailable); it is overloaded or starting: wait, or lower \
             prometheus.parallelism",
            fake.url
        )
    );
    assert_eq!(fake.asked().len(), 5);
}

#[tokio::test]
async fn a_server_that_says_when_to_come_back_is_asked_then() {
    let fake = Fake::start(|number, asked| match number {
        0 => ([("retry-after", "1")], answered(503, "")).into_response(),
        _ => asked.answer().into_response(),
    })
    .await;
    let source = fake.source(|_| {});
    let started = std::time::Instant::now();
    latest(&source).await.unwrap();
    assert_eq!(source.counters().retries(), 1);
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn other_refusals_are_told_at_once_with_what_to_do() {
    let said = r#"bad_data: invalid parameter "query""#;
    for (status, body, told) in [
        (400, r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#, "400 (parse error)"),
        (401, "no\n", "401 (no); set prometheus.bearerTokenFile"),
        (403, "", "403 (it gave no reason); allow berth's account"),
        // A Status of an API server before Prometheus.
        (403, r#"{"kind":"Status","status":"Failure","message":"not yours"}"#, "403 (not yours); allow"),
        (
            404,
            "404 page not found",
            "404 (404 page not found); prometheus.url must be the address before /api/v1",
        ),
        (
            422,
            r#"{"status":"error","errorType":"execution","error":"found duplicate series"}"#,
            "422 (found dup",
        ),
        (500, "<html>", "500 (<html>); see the log of Prometheus"),
    ] {
        let fake = Fake::start(move |_, _| answered(status, body)).await;
        let error = latest(&fake.source(|_| {})).await.unwrap_err().to_string();
        assert!(error.contains(told), "{said}: {error}");
        assert_eq!(fake.asked().len(), 1);
    }
}

#[tokio::test]
async fn a_redirection_is_told_and_not_followed() {
    let fake = Fake::start(|_, _| {
        Response::builder().status(302).header("location", "https://login/").body(Body::empty()).unwrap()
    })
    .await;
    let error = latest(&fake.source(|_| {})).await.unwrap_err().to_string();
    assert!(error.contains(r#"302 (it redirects to "https://login/"); set prometheus.url"#), "{error}");
}

#[tokio::test]
async fn nobody_there_is_told_after_a_few_tries() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let source = source(crate::PrometheusConfig { url: url.clone(), ..Default::default() });
    let error = source.check(Timestamp::UNIX_EPOCH).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("Prometheus at {url} cannot be reached (")), "{error}");
    assert!(error.contains("refused") && error.contains("5 tries"), "{error}");
    assert_eq!(source.counters().requests()[&0].count, 5);
}

#[tokio::test]
async fn a_slow_answer_is_given_up_whether_it_has_begun_or_not() {
    let never = || tokio::time::sleep(Duration::from_secs(3_600));
    let begins_late = Fake::start_async(move |_, _| async move {
        never().await;
        answered(200, "")
    });
    let ends_late = Fake::start_async(move |_, asked: RecordedRequest| async move {
        let first = futures::stream::once(async move {
            Ok::<_, std::io::Error>(Bytes::from(asked.answer()[..20].to_owned()))
        });
        let rest = futures::stream::once(async move {
            never().await;
            Ok(Bytes::new())
        });
        answered(200, Body::from_stream(first.chain(rest.boxed())))
    });
    let (begins_late, ends_late) = tokio::join!(begins_late, ends_late);
    let sources = [begins_late.source(|_| {}), ends_late.source(|_| {})];
    let (first, second) = tokio::join!(latest(&sources[0]), latest(&sources[1]));
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(matches!(error, SourceError::TimedOut { .. }), "{error}");
        assert!(
            error.to_string().contains("did not answer within 1s; raise prometheus.queryTimeout"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer() {
    let cut = Fake::start(|_, asked| asked.answer()[..80].to_owned()).await;
    let error = latest(&cut.source(|_| {})).await.unwrap_err();
    let source = DecodeError::Truncated { bytes: 80 };
    assert!(matches!(&error, SourceError::Answer { source: found, .. } if *found == source), "{error:?}");
    assert!(told(&error).contains("the answer breaks off after 80 bytes"), "{}", told(&error));

    let reset = Fake::start(|_, asked| {
        let first = Bytes::from(asked.answer()[..80].to_owned());
        let gone = async {
            // By then the bytes written before are on their way.
            tokio::time::sleep(Duration::from_millis(50)).await;
            Err(std::io::Error::other("gone"))
        };
        let pieces = [futures::future::ready(Ok(first)).boxed(), gone.boxed()];
        answered(200, Body::from_stream(futures::stream::iter(pieces).then(|piece| piece)))
    })
    .await;
    let error = latest(&reset.source(|_| {})).await.unwrap_err();
    assert!(matches!(error, SourceError::Broken { bytes: 80, .. }), "{error:?}");
}

#[tokio::test]
async fn an_answer_of_another_type_or_to_another_question_is_told() {
    let wrong_type = Fake::start(|_, asked| asked.answer().replace("vector", "matrix")).await;
    let page = Fake::start(|_, _| "<!DOCTYPE html><title>Sign in</title>").await;
    let refused = Fake::start(|_, _| error(200, "internal", "it broke")).await;
    for (fake, expected) in [
        (&wrong_type, r#"the result is a "matrix" and not a vector"#),
        (&page, "the answer is not JSON: it has '<' at byte 0"),
        (&refused, "internal: it broke"),
    ] {
        let error = latest(&fake.source(|_| {})).await.unwrap_err();
        assert!(told(&error).ends_with(expected), "{}", told(&error));
        assert!(
            error
                .to_string()
                .contains("sent an invalid answer to the query `max by (namespace, pod, container)"),
            "{error}"
        );
    }
    let error = page.source(|_| {}).check(Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert!(told(&error).contains("Sign in"), "{}", told(&error));
}

#[tokio::test]
async fn an_answer_has_a_limit_in_bytes() {
    let fake = Fake::start(|_, asked| format!("{}{}", asked.answer(), " ".repeat(1 << 20))).await;
    let error = latest(&fake.source(|config| config.max_response_bytes = 1 << 20)).await.unwrap_err();
    assert!(matches!(error, SourceError::TooLong { bytes_max: 1_048_576, .. }), "{error}");
    latest(&fake.source(|config| config.max_response_bytes = 2 << 20)).await.unwrap();
}

#[test]
fn a_ca_file_that_cannot_be_used_is_told_at_once() {
    install_provider();
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = crate::PrometheusConfig { ca_file: Some(file.path().to_owned()), ..Default::default() };
    let error = PrometheusSource::new(config.clone()).err().unwrap();
    assert!(
        told(&error).contains("prometheus.caFile cannot be used: ")
            && told(&error).contains("no certificate")
    );
    drop(file);
    let error = PrometheusSource::new(config).err().unwrap();
    assert!(matches!(error, SourceError::File { field: "caFile", .. }), "{error}");
}

#[tokio::test]
async fn a_certificate_is_trusted_when_the_ca_file_has_its_ca_or_nothing_is_checked() {
    let (fake, certificate) = Fake::start_tls().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), certificate).unwrap();
    latest(&fake.source(|config| config.ca_file = Some(file.path().to_owned()))).await.unwrap();
    latest(&fake.source(|config| config.insecure_skip_verify = true)).await.unwrap();
    assert_eq!(fake.asked().len(), 4);
    let error = latest(&fake.source(|_| {})).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached (") && error.contains("certificate"), "{error}");
    assert_eq!(fake.asked().len(), 4);
}
