//! Who may ask. The server listens on this machine alone unless told otherwise, and still anybody
//! who uses the machine, and any page open in the same browser, can reach it. So every request
//! needs the token that the program printed, as a cookie that no other site can make the browser
//! send; and the names in `Host` and `Origin` must be the server's own, so that no foreign name
//! that was pointed at this address passes for it (DNS rebinding).

use axum::http::{HeaderMap, Method, header};
use std::net::IpAddr;

/// What is sent with every response.
pub(crate) const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
];

/// The rules of one server.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    token: String,
    port: u16,
    /// The name or address given with `--host`, beside those of this machine.
    host: String,
}

/// A request that may not pass: HTTP status and message.
pub(crate) type Denied = (u16, String);

impl Guard {
    pub(crate) fn new(host: &str, port: u16) -> std::io::Result<Self> {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
        Ok(Self {
            token: bytes.iter().map(|b| format!("{b:02x}")).collect(),
            port,
            host: host.to_ascii_lowercase(),
        })
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Ports share a host's cookies, so the name holds the port.
    fn cookie_name(&self) -> String {
        format!("agentgym_view_{}", self.port)
    }

    pub(crate) fn cookie(&self) -> String {
        format!(
            "{}={}; HttpOnly; SameSite=Strict; Path=/",
            self.cookie_name(),
            self.token
        )
    }

    /// Whether a token is the server's, in a time that does not depend on where they differ.
    pub(crate) fn is_token(&self, given: &str) -> bool {
        let (a, b) = (given.as_bytes(), self.token.as_bytes());
        let differ = a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y));
        a.len() == b.len() && differ == 0
    }

    /// Method and names, for every request.
    pub(crate) fn check_names(&self, method: &Method, headers: &HeaderMap) -> Result<(), Denied> {
        if method != Method::GET && method != Method::HEAD {
            return Err((405, "only GET: the viewer changes nothing".into()));
        }
        let text = |name: header::HeaderName| {
            let value = headers.get(name);
            value.map(|value| value.to_str().unwrap_or("\u{fffd}").to_ascii_lowercase())
        };
        let host = text(header::HOST).unwrap_or_default();
        if !self.is_own(&host) {
            return Err((
                421,
                "this name is not the viewer's; open the URL that the program printed".into(),
            ));
        }
        match text(header::ORIGIN) {
            Some(origin) if origin != format!("http://{host}") => {
                Err((403, "a page of another site may not ask".into()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a `Host` names this server. If it listens on every address, any address does: a
    /// foreign page can only come in by a name.
    fn is_own(&self, host: &str) -> bool {
        let Some((name, port)) = host.rsplit_once(':') else {
            return false;
        };
        if port != self.port.to_string() {
            return false;
        }
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let address: Option<IpAddr> = bare.parse().ok();
        let listens_everywhere = matches!(self.host.as_str(), "0.0.0.0" | "::");
        name == "localhost"
            || bare == self.host
            || address.is_some_and(|a| a.is_loopback() || listens_everywhere)
    }

    /// The token, in the cookie or in an `Authorization: Bearer` of a script.
    pub(crate) fn check_token(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let all = headers.get_all(header::COOKIE);
        let name = self.cookie_name();
        let cookies = all.iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|value| value.split(';'));
        let by_cookie = cookies.any(|cookie| {
            let pair = cookie.trim().split_once('=');
            pair.is_some_and(|(key, value)| key == name && self.is_token(value))
        });
        let bearer = headers.get(header::AUTHORIZATION);
        let bearer = bearer.and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
        match by_cookie || bearer.is_some_and(|given| self.is_token(given)) {
            true => Ok(()),
            false => Err((
                401,
                "open the URL that `agentgym-submit view` printed: it holds the token".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(host: &str) -> Guard {
        Guard::new(host, 7576).unwrap()
    }

    fn denied(guard: &Guard, method: Method, host: &str, origin: Option<&str>) -> Option<u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        let checked = guard.check_names(&method, &headers);
        checked.err().map(|(status, _)| status)
    }

    #[test]
    fn only_its_own_names_pass() {
        let own = guard("127.0.0.1");
        for host in [
            "127.0.0.1:7576",
            "localhost:7576",
            "LOCALHOST:7576",
            "[::1]:7576",
        ] {
            assert_eq!(denied(&own, Method::GET, host, None), None, "{host}");
        }
        for host in [
            "evil.example:7576",
            "127.0.0.1",
            "127.0.0.1:80",
            "10.0.0.7:7576",
            "localhost.evil.example:7576",
            "",
        ] {
            assert_eq!(denied(&own, Method::GET, host, None), Some(421), "{host}");
        }
        let wide = guard("0.0.0.0");
        assert_eq!(denied(&wide, Method::GET, "10.0.0.7:7576", None), None);
        assert_eq!(
            denied(&wide, Method::GET, "evil.example:7576", None),
            Some(421)
        );
        let named = guard("gpu1.lab");
        assert_eq!(denied(&named, Method::GET, "gpu1.lab:7576", None), None);
    }

    #[test]
    fn other_origins_and_methods_do_not() {
        let own = guard("127.0.0.1");
        let host = "127.0.0.1:7576";
        let same = Some("http://127.0.0.1:7576");
        assert_eq!(denied(&own, Method::GET, host, same), None);
        for origin in [
            "http://evil.example",
            "null",
            "http://localhost:7576",
            "https://127.0.0.1:7576",
        ] {
            assert_eq!(
                denied(&own, Method::GET, host, Some(origin)),
                Some(403),
                "{origin}"
            );
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(denied(&own, method, host, None), Some(405));
        }
    }

    #[test]
    fn the_token_passes_as_a_cookie_or_a_bearer() {
        let own = guard("127.0.0.1");
        let with = |name: header::HeaderName, value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            own.check_token(&headers).is_ok()
        };
        let token = own.token().to_owned();
        assert!(with(
            header::COOKIE,
            format!("a=b; agentgym_view_7576={token}; c=d")
        ));
        assert!(with(header::AUTHORIZATION, format!("Bearer {token}")));
        assert!(!with(header::COOKIE, format!("agentgym_view_7577={token}")));
        assert!(!with(header::COOKIE, "agentgym_view_7576=".into()));
        let last = if token.ends_with('0') { '1' } else { '0' };
        assert!(!with(
            header::COOKIE,
            format!("agentgym_view_7576={}{last}", &token[..63])
        ));
        assert!(!with(header::AUTHORIZATION, format!("Basic {token}")));
        assert!(own.check_token(&HeaderMap::new()).is_err());
        assert_ne!(guard("127.0.0.1").token(), guard("127.0.0.1").token());
        assert!(own.cookie().contains("HttpOnly; SameSite=Strict"));
    }
}
