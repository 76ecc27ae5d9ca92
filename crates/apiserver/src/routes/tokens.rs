//! Tokens and identities: `serviceaccounts/NAME/token`, `TokenReview`, `SelfSubjectReview`, and what
//! others need in order to verify tokens by themselves.

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde_json::{Value, json};

use super::respond::{self, Result};
use super::writes::WriteOptions;
use super::{Call, Router};
use crate::api_types::Subresource;
use crate::audit;
use crate::auth::Error;
use crate::operations::check_namespace;
use crate::response_body::Body;
use crate::schema::value::{items, text};
use crate::status::StatusError;
use crate::tokens::{CONFIGURATION_PATH, KEY_SET_PATH};
use crate::user::User;

/// How long clients may cache keys.
const KEYS_CACHING: HeaderValue = HeaderValue::from_static("public, max-age=3600");

impl Router {
    /// Issues a token. A dry run issues one too: nothing is stored of it.
    pub(super) async fn token(&self, mut call: Call<'_>, subresource: &Subresource) -> Result {
        let body = self.body(&mut call).await?;
        let WriteOptions { dry_run, validation, .. } = WriteOptions::read(&call)?;
        let (request, mut warnings) = body.read(subresource.gvk, validation)?;
        audit::request_object(&request);
        check_namespace(&request, call.namespace())?;
        let (request, said) = self.admit_created(&call, request, dry_run).await?;
        warnings.extend(said);
        let account = (call.namespace(), call.path.name.as_str());
        let (request, said) = self.api.request_token(call.user, account, request).await?;
        warnings.extend(said);
        let mut answer = respond::json(StatusCode::CREATED, &request);
        respond::warn(&mut answer, &warnings);
        Ok(answer)
    }

    /// The status of a TokenReview.
    pub(super) async fn token_status(&self, spec: &Value) -> Result<Value> {
        let token = text(&spec["token"]);
        if token.is_empty() {
            return Err(StatusError::bad_request(
                "token is required for TokenReview in authentication",
            ));
        }
        let mut audiences: Vec<String> =
            items(&spec["audiences"]).iter().map(|audience| text(audience).to_owned()).collect();
        if audiences.is_empty() {
            audiences = self.api.tokens.audiences().to_vec();
        }
        match self.authenticator.authenticate_token(token, &audiences).await {
            Ok(token) => Ok(json!({
                "authenticated": true,
                "user": user_info(&token.user),
                "audiences": token.audiences,
            })),
            Err(Error::Store(error)) => Err(error),
            Err(error) => Ok(json!({"user": {}, "error": error.to_string()})),
        }
    }

    /// OpenID Connect discovery of the issuer of tokens; `None` for other paths.
    pub(super) fn discovery(&self, path: &str) -> Option<Result> {
        let tokens = &self.api.tokens;
        let (content_type, document) = match path {
            CONFIGURATION_PATH => match tokens.configuration() {
                Some(document) => ("application/json", document.to_string()),
                None => return Some(Err(StatusError::no_such_path())),
            },
            KEY_SET_PATH => ("application/jwk-set+json", tokens.key_set().to_string()),
            _ => return None,
        };
        let content_type = HeaderValue::from_static(content_type);
        let mut answer = respond::raw(StatusCode::OK, content_type, Body::from(document));
        answer.headers_mut().insert(header::CACHE_CONTROL, KEYS_CACHING);
        Some(Ok(answer))
    }
}

/// A user as answers show it, without what is not known of him.
pub(super) fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
