//! Who may come in: whoever knows a token. There is no way around it, also not on loopback.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use super::problem::Problem;
use crate::files::{TokenHash, hash};

/// What anybody may ask: whether the process lives, whether it can work.
const OPEN: [&str; 2] = ["/livez", "/readyz"];

pub(super) async fn require_token(
    State(tokens): State<Arc<[TokenHash]>>,
    request: Request,
    next: Next,
) -> Response {
    if OPEN.contains(&request.uri().path()) || is_known(&request, &tokens) {
        return next.run(request).await;
    }
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "send `Authorization: Bearer TOKEN` with a valid token",
    )
    .into_response()
}

fn is_known(request: &Request, tokens: &[TokenHash]) -> bool {
    let mut values = request.headers().get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Some((scheme, token)) = value.to_str().ok().and_then(|text| text.split_once(' ')) else {
        return false;
    };
    let given = hash(token.trim());
    // All are compared, whole, whatever the outcome.
    let known = tokens
        .iter()
        .fold(Choice::from(0), |known, hash| known | hash.ct_eq(&given));
    scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() && bool::from(known)
}
