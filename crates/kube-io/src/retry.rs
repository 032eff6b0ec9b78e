//! Replies to writes, and the one loop that retries writes.

use std::future::Future;
use std::time::Duration;

use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;

use super::client::{self, Answer};

/// The API server's reply to a write.
#[derive(Debug)]
pub(crate) enum WriteReply {
    Done(Answer),
    /// The object does not exist (404), or its uid is not the one in the request: it was recreated.
    Gone(Answer),
    /// The object was changed since it was read, or exists already (409).
    Conflict(Answer),
    /// The API server is overloaded or has no leader (408, 429, 5xx).
    RetryAfter(Answer),
    /// Any other status: the same request fails again.
    Rejected(Answer),
    /// The request could not be built and was not sent.
    Unsent(String),
    /// No complete reply: the write may have been carried out.
    Unknown(String),
}

/// Why an attempt failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Retry {
        /// As in the header `Retry-After`.
        after: Option<Duration>,
        why: String,
    },
    Final(String),
}

/// Why a write was abandoned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// The fence was closed.
    Stopped,
    Failed(String),
}

/// Sends `request` once, and classifies the reply.
pub(crate) async fn send(client: &Client, request: Result<Request<Body>, String>) -> WriteReply {
    match request {
        Err(why) => WriteReply::Unsent(format!("the request cannot be built: {why}")),
        Ok(request) => match client::exchange(client, request).await {
            Ok(answer) => WriteReply::of(answer),
            Err(why) => WriteReply::Unknown(why),
        },
    }
}

impl WriteReply {
    fn of(answer: Answer) -> WriteReply {
        let names = |text: &str| answer.message().contains(text);
        match answer.status {
            status if status.is_success() => WriteReply::Done(answer),
            StatusCode::NOT_FOUND => WriteReply::Gone(answer),
            // A merge patch with another uid, and a JSON patch that tests it.
            StatusCode::UNPROCESSABLE_ENTITY if names("metadata.uid") || names("/metadata/uid") => {
                WriteReply::Gone(answer)
            }
            StatusCode::CONFLICT if names("UID in precondition") => WriteReply::Gone(answer),
            StatusCode::CONFLICT => WriteReply::Conflict(answer),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => WriteReply::RetryAfter(answer),
            status if status.is_server_error() => WriteReply::RetryAfter(answer),
            _ => WriteReply::Rejected(answer),
        }
    }

    /// Returns the body if the write was carried out, `None` if the object is gone. Conflicts are retried.
    pub fn settled(self) -> Result<Option<Vec<u8>>, Failure> {
        match self {
            WriteReply::Done(answer) => Ok(Some(answer.body)),
            WriteReply::Gone(_) => Ok(None),
            WriteReply::Conflict(answer) | WriteReply::RetryAfter(answer) => {
                Err(Failure::Retry { after: answer.retry_after, why: answer.message() })
            }
            WriteReply::Rejected(answer) => Err(Failure::Final(answer.message())),
            WriteReply::Unsent(why) => Err(Failure::Final(why)),
            WriteReply::Unknown(why) => Err(Failure::Retry { after: None, why }),
        }
    }

    /// The same for the creation of an object whose name is unique: a conflict means that an earlier attempt arrived.
    pub fn created(self) -> Result<(), Failure> {
        match self {
            WriteReply::Conflict(_) => Ok(()),
            reply => reply.settled().map(drop),
        }
    }
}

/// Attempts and the pauses between them. A pause doubles each time; `Retry-After` can make it longer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub attempts: u32,
    pub first: Duration,
    pub longest: Duration,
}

/// About 8 s of pauses in total. The API server asks for 1 s to 10 s.
pub(crate) const BACKOFF: Backoff =
    Backoff { attempts: 6, first: Duration::from_millis(250), longest: Duration::from_secs(10) };
/// About 26 s of pauses in total, for writes that are not repeated by anything else.
pub(crate) const PATIENT: Backoff = Backoff { attempts: 8, ..BACKOFF };

impl Backoff {
    fn pause(&self, attempt: u32, after: Option<Duration>) -> Duration {
        let pause = self.first.saturating_mul(1 << (attempt - 1).min(16));
        after.unwrap_or(pause).max(pause).min(self.longest)
    }
}

/// Repeats `attempt` until it succeeds, fails for good or too often, or `fence` returns false, which is called with the
/// attempt's number (from 1) right before each. `object` names the object in the log.
pub(crate) async fn retry<T, F: Future<Output = Result<T, Failure>>>(
    backoff: Backoff,
    object: &str,
    fence: impl Fn(u32) -> bool,
    attempt: impl Fn() -> F,
) -> Result<T, Abandoned> {
    let mut number = 1;
    loop {
        if !fence(number) {
            return Err(Abandoned::Stopped);
        }
        let (after, why) = match attempt().await {
            Ok(value) => return Ok(value),
            Err(Failure::Retry { after, why }) if number < backoff.attempts => (after, why),
            Err(Failure::Retry { why, .. } | Failure::Final(why)) => return Err(Abandoned::Failed(why)),
        };
        tracing::debug!(object, attempt = number, why, "write failed, retrying");
        tokio::time::sleep(backoff.pause(number, after)).await;
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest_and_respects_retry_after() {
        let pauses = [1, 2, 6, 7, 40].map(|attempt| PATIENT.pause(attempt, None).as_millis());
        assert_eq!(pauses, [250, 500, 8_000, 10_000, 10_000]);
        let after = |seconds| PATIENT.pause(2, Some(Duration::from_secs(seconds))).as_millis();
        assert_eq!([after(0), after(3), after(60)], [500, 3_000, 10_000]);
    }

    #[test]
    fn a_reply_is_classified_by_status_and_precondition() {
        let class = |status: u16, message: &str| {
            let body = serde_json::json!({"message": message}).to_string().into_bytes();
            let status = StatusCode::from_u16(status).expect("valid");
            match WriteReply::of(Answer { status, retry_after: None, body }) {
                WriteReply::Done(_) => "done",
                WriteReply::Gone(_) => "gone",
                WriteReply::Conflict(_) => "conflict",
                WriteReply::RetryAfter(_) => "retry after",
                WriteReply::Rejected(_) => "rejected",
                WriteReply::Unsent(_) | WriteReply::Unknown(_) => "no reply",
            }
        };
        assert_eq!([200, 201].map(|status| class(status, "")), ["done"; 2]);
        assert_eq!([400, 401, 403, 422].map(|status| class(status, "")), ["rejected"; 4]);
        assert_eq!([408, 429, 500, 503, 504].map(|status| class(status, "")), ["retry after"; 5]);
        assert_eq!([class(404, ""), class(409, "")], ["gone", "conflict"]);
        let of_uid =
            [(409, "UID in precondition: a"), (422, "metadata.uid: Invalid"), (422, "/metadata/uid")];
        assert_eq!(of_uid.map(|(status, message)| class(status, message)), ["gone"; 3]);
    }
}
