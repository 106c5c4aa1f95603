//! What a failure of etcd means for the caller.
//!
//! One table, on purpose by the exact words of etcd: its codes are shared by failures that are
//! certain and failures that are not (`Unavailable` is "no leader, not tried" as well as "timed
//! out, may still happen"). What the table does not know is
//! [`Unknown`](BackendError::Unknown) for a write and
//! [`Unavailable`](BackendError::Unavailable) for a read, so that a message reworded by some later
//! etcd makes us more careful, never less.
//!
//! Not in the table, though tempting: *"database space exceeded"*. etcd checks its quota once
//! before a request enters the log, and once more when it applies it; there it applies the writes
//! and *then* answers with the error (31 of 32 concurrent writes, when tried on 3.4.23). So it is
//! `Unknown` like everything else.

use std::error::Error as _;

use etcd_client::Error;
use punctual::backend::BackendError;
use tonic::{Code, ConnectError as NotConnected, Status};

/// No store came of it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The configuration cannot work.
    #[error("etcd: {0}")]
    Config(String),
    /// Refused for safety: what is sent to this endpoint can be read on the way.
    #[error(
        "etcd: {endpoint} is neither on this host nor https: whoever is on the way reads and \
         changes everything; use https, or allow plaintext explicitly"
    )]
    Plaintext {
        /// The endpoint.
        endpoint: String,
    },
    /// Refused for safety: this release can lose acknowledged writes when it is killed.
    #[error(
        "etcd {version} at {endpoint} can corrupt its data when it is killed (so can all from \
         3.5.0 to 3.5.2); upgrade it, or allow it explicitly"
    )]
    CorruptingVersion {
        /// The endpoint.
        endpoint: String,
        /// The version found there.
        version: String,
    },
    /// This etcd does not let us in. Another try changes nothing; a person has to.
    #[error("etcd at {endpoint} does not let us in: {why}")]
    Denied {
        /// The endpoint.
        endpoint: String,
        /// What etcd said.
        why: String,
    },
    /// No endpoint answered as it should. Trying again may help.
    #[error("etcd: no endpoint answers: {}", .0.join("; "))]
    Unreachable(
        /// What happened at each endpoint.
        Vec<String>,
    ),
}

impl ConnectError {
    /// What a failed step of connecting means.
    pub(crate) fn of(endpoint: &str, error: &Error) -> Self {
        let endpoint = endpoint.to_owned();
        if let Error::GRpcStatus(status) = error {
            let why = match status.message() {
                "etcdserver: authentication failed, invalid user ID or password" => {
                    "authentication failed: wrong user or password"
                }
                "etcdserver: user name is empty" => "it asks for a user, and none is given",
                "etcdserver: permission denied" => "this user may not read our keys",
                "etcdserver: authentication is not enabled" => {
                    "a user is given, but it asks nobody who they are (`etcdctl auth enable`)"
                }
                message => {
                    let why = with_causes(message, status);
                    return Self::Unreachable(vec![format!("{endpoint}: {why}")]);
                }
            };
            return Self::Denied {
                endpoint,
                why: why.into(),
            };
        }
        let why = with_causes(&error.to_string(), error);
        Self::Unreachable(vec![format!("{endpoint}: {why}")])
    }
}

/// A failure and what it comes from: "transport error" alone helps nobody.
fn with_causes(what: &str, error: &dyn std::error::Error) -> String {
    let mut text = what.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// What a call does when it succeeds, and so what its failure leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Looks. A failure changed nothing.
    Read,
    /// Changes something. A failure may have.
    Write,
}

impl Call {
    /// The kind of a failure of which nothing more is known.
    pub(crate) fn failed(self, why: impl Into<String>) -> BackendError {
        match self {
            Self::Read => BackendError::Unavailable(why.into()),
            Self::Write => BackendError::Unknown(why.into()),
        }
    }
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the caller is told.
    pub(crate) error: BackendError,
    /// What we make of it ourselves.
    pub(crate) sign: Sign,
}

/// What a failure tells beside its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Nothing.
    None,
    /// This member does not answer, or not for the cluster: ask another one next time.
    Member,
    /// Our token is not valid any more.
    Token,
    /// The revision asked for is gone.
    Compacted,
    /// The answer is larger than we are ready to read.
    TooLarge,
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl Failure {
    pub(crate) fn new(error: BackendError, sign: Sign) -> Self {
        Self { error, sign }
    }

    /// Sorts a failure of etcd or of the way to it.
    pub(crate) fn sort(call: Call, error: &Error) -> Self {
        match error {
            Error::GRpcStatus(status) => Self::of_status(call, status),
            // How the client says that a keep-alive was answered with no time left.
            Error::LeaseKeepAliveError(why) if why == "lease not found" => {
                Self::new(BackendError::LeaseLost, Sign::None)
            }
            other => Self::new(call.failed(other.to_string()), Sign::Member),
        }
    }

    fn of_status(call: Call, status: &Status) -> Self {
        if was_not_connected(status) {
            let why = status.message();
            return Self::new(BackendError::Unavailable(why.into()), Sign::Member);
        }
        let why = || status.message().to_owned();
        let unavailable = || BackendError::Unavailable(why());
        let rejected = || BackendError::Rejected(why());
        let (error, sign) = match status.message() {
            "etcdserver: requested lease not found" => (BackendError::LeaseLost, Sign::None),
            "etcdserver: mvcc: required revision has been compacted" => {
                (call.failed(why()), Sign::Compacted)
            }
            // Looked at before the request enters the log.
            "etcdserver: mvcc: required revision is a future revision"
            | "etcdserver: key is not provided"
            | "etcdserver: duplicate key given in txn request"
            | "etcdserver: too many operations in txn request"
            | "etcdserver: request is too large"
            | "etcdserver: too large lease TTL" => (rejected(), Sign::None),
            "etcdserver: too many requests" => (unavailable(), Sign::None),
            "etcdserver: no leader" => (unavailable(), Sign::Member),
            // Looked at where the request would be applied, before it is.
            "etcdserver: permission denied" => (unavailable(), Sign::None),
            "etcdserver: invalid auth token"
            | "etcdserver: user name is empty"
            | "etcdserver: revision of auth store is old" => (unavailable(), Sign::Token),
            message => match status.code() {
                // Said by our own side. etcd's failures with this code are all listed above.
                Code::OutOfRange if !message.starts_with("etcdserver:") => {
                    (call.failed(why()), Sign::TooLarge)
                }
                Code::Unauthenticated => (unavailable(), Sign::Token),
                Code::Unavailable
                | Code::Unknown
                | Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Internal
                | Code::Aborted => (call.failed(why()), Sign::Member),
                _ => (call.failed(why()), Sign::None),
            },
        };
        Self::new(error, sign)
    }
}

/// Whether no connection was there to send the request on: the one transport failure that is
/// certain. A connection that breaks afterwards says nothing about what etcd has read from it.
fn was_not_connected(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<NotConnected>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(call: Call, code: Code, message: &str) -> (BackendError, Sign) {
        let error = Error::GRpcStatus(Status::new(code, message));
        let Failure { error, sign } = Failure::sort(call, &error);
        (error, sign)
    }

    #[test]
    fn a_write_that_may_still_happen_is_unknown() {
        for (code, message) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to connection lost",
            ),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "transport is closing"),
            (Code::Unavailable, "tcp connect error"), // Words prove nothing, only the cause does.
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
            ),
            (Code::Cancelled, "Timeout expired"),
            (
                Code::Unknown,
                "h2 protocol error: error reading a body from connection",
            ),
            (Code::Internal, "anything"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::InvalidArgument, "etcdserver: something new"),
            (Code::OutOfRange, "decoded message length too large"),
        ] {
            let (error, _) = sorted(Call::Write, code, message);
            assert!(
                matches!(error, BackendError::Unknown(_)),
                "{message}: {error}"
            );
            let (error, _) = sorted(Call::Read, code, message);
            assert!(
                matches!(error, BackendError::Unavailable(_)),
                "{message}: {error}"
            );
        }
        for error in [
            Error::WatchError("failed to create lease keeper".into()),
            Error::LeaseKeepAliveError("channel closed".into()),
            Error::Internal("x".into()),
        ] {
            let error = Failure::sort(Call::Write, &error).error;
            assert!(matches!(error, BackendError::Unknown(_)), "{error}");
        }
    }

    #[test]
    fn what_certainly_did_not_happen_is_unavailable() {
        for (code, message, sign) in [
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                Sign::None,
            ),
            (Code::Unavailable, "etcdserver: no leader", Sign::Member),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                Sign::None,
            ),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                Sign::Token,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                Sign::Token,
            ),
        ] {
            let answer = sorted(Call::Write, code, message);
            assert_eq!(answer, (BackendError::Unavailable(message.into()), sign));
        }
    }

    #[test]
    fn refusals_by_etcd_are_told_apart() {
        let (error, _) = sorted(
            Call::Write,
            Code::NotFound,
            "etcdserver: requested lease not found",
        );
        assert_eq!(error, BackendError::LeaseLost);
        let gone = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(
            sorted(Call::Read, Code::OutOfRange, gone).1,
            Sign::Compacted
        );
        let large = "Error, decoded message length too large";
        assert_eq!(
            sorted(Call::Read, Code::OutOfRange, large).1,
            Sign::TooLarge
        );
        let wide = "etcdserver: too many operations in txn request";
        let (error, _) = sorted(Call::Write, Code::InvalidArgument, wide);
        assert!(matches!(error, BackendError::Rejected(_)));
    }
}
