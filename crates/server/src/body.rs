//! Reads request bodies within limits.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Timeout for the whole body; no supported client is slower.
const LONGEST_READ: Duration = Duration::from_secs(10);

/// Why a body was not read, for the client.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    why: String,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, self.why).into_response()
    }
}

/// Reads the whole body, of at most `limit` bytes.
///
/// # Errors
/// The response for the client: too long (413), too slow (408) or connection broken (400).
pub(super) async fn read(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let refuse = |status: StatusCode, why: String| Err(Refusal { status, why });
    match tokio::time::timeout(LONGEST_READ, axum::body::to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_long(&error) => {
            refuse(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {limit} bytes"))
        }
        Ok(Err(error)) => {
            refuse(StatusCode::BAD_REQUEST, format!("the connection broke while the body was read: {error}"))
        }
        Err(_) => refuse(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body was not complete within {} s", LONGEST_READ.as_secs()),
        ),
    }
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit") {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        assert_eq!(&*read(Body::from("1234"), 4).await.expect("within the limit"), b"1234");
        let refused = read(Body::from("12345"), 4).await.expect_err("too long");
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_not_waited_for() {
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let refused = read(never, 4).await.expect_err("too slow");
        assert_eq!(refused.status, StatusCode::REQUEST_TIMEOUT);
    }
}
