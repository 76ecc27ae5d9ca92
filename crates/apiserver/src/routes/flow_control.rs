//! What priority and fairness has to know of a request: what it belongs to, and how much it will be.

use std::sync::Arc;
use std::time::Instant;

use super::request::RequestLine;
use super::{Caller, Router, limits};
use crate::flow_control::{Arrival, Class, CountedWatch, Describe, Rejected, Seat, Width};
use crate::user::User;

impl Router {
    /// What a request belongs to; `None` for one that lasts, unless it is a watch.
    pub(super) fn classify(&self, user: &User, line: &RequestLine) -> Option<Class> {
        let is_limited = line.verb == "watch" || !limits::is_long_running(line);
        let flow_control = self.flow_control.as_ref().filter(|_| is_limited)?;
        Some(flow_control.classify(user, &line.digest()))
    }

    /// Waits for the seats of a request, if it has to have any.
    pub(super) async fn seat(
        &self,
        class: Option<&Class>,
        caller: &Caller,
        line: &Arc<RequestLine>,
        began: Instant,
    ) -> Result<Option<Seat>, Rejected> {
        let (Some(class), Some(flow_control)) = (class, &self.flow_control) else {
            return Ok(None);
        };
        let arrival = Arrival {
            width: self.width(class, caller, line),
            is_mutating: !matches!(line.verb, "get" | "list" | "watch"),
            is_watch: line.verb == "watch",
            began: began.into(),
            user: caller.holder.name().clone(),
            request: line.clone(),
        };
        flow_control.admit(class, arrival).await.map(Some)
    }

    fn width(&self, class: &Class, caller: &Caller, line: &RequestLine) -> Width {
        let Some(flow_control) = &self.flow_control else { return Width::ONE };
        let digest = line.digest();
        match line.verb {
            "list" => {}
            "watch" => {
                let begins_with_list = match line.query.get("sendInitialEvents") {
                    Some(_) => line.query.flag("sendInitialEvents"),
                    None => matches!(line.query.get("resourceVersion"), None | Some("0")),
                };
                if !begins_with_list {
                    return Width::ONE;
                }
            }
            // nobody hears of a token
            "create" if digest.resource == "serviceaccounts" && digest.subresource == "token" => {
                return Width::ONE;
            }
            "create" | "update" | "patch" | "delete" => {
                return flow_control.width_of_write(class, &digest);
            }
            _ => return Width::ONE,
        }
        let size = caller.route.as_ref().and_then(|route| self.api.registry.size(route.resource));
        // what is no number is refused later
        let limit = line.query.number("limit").ok().flatten().unwrap_or(0);
        flow_control.width_of_list(class, size, limit, !digest.name.is_empty())
    }

    /// Counts a watch, for the width of what it hears of.
    pub(super) fn count_watch(
        &self,
        class: Option<&Class>,
        line: &RequestLine,
    ) -> Option<CountedWatch> {
        let flow_control = self.flow_control.as_ref().filter(|_| class.is_some())?;
        flow_control.count_watch(&line.digest(), line.selects_node())
    }
}
