//! Acting as somebody else, as `kubectl --as` asks: `Impersonate-User` and `Impersonate-Group`.
//! Who may do everything may do that.
//!
//! Current limitations: UIDs and extras of the impersonated user are not kept, as of any user.

use hyper::HeaderMap;

use super::respond::Result;
use crate::auth::{self, Access, Decision, ResourceTarget, Target, User};
use crate::status::StatusError;

const PREFIX: &str = "impersonate-";

/// As whom the caller wants this request to be judged and carried out.
pub(super) fn effective(caller: User, headers: &HeaderMap) -> Result<User> {
    if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Ok(caller);
    }
    let all = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
    };
    let Some(name) = all("impersonate-user").into_iter().find(|name| !name.is_empty()) else {
        return Err(StatusError::bad_request("impersonation needs the header Impersonate-User"));
    };
    let users = ResourceTarget { resource: "users", name: &name, ..ResourceTarget::default() };
    let access = Access { user: &caller, verb: "impersonate", target: Target::Resource(users) };
    if auth::authorize(&access) != Decision::Allow {
        return Err(match caller.is_anonymous() {
            true => StatusError::unauthorized(),
            false => StatusError::forbidden_path(&auth::forbidden_message(&access, "")),
        });
    }
    Ok(User::impersonated(name, all("impersonate-group")))
}
