//! One network policy for all HTTP clients (environments, reward functions, inference servers, chat
//! APIs, the hub): proxies as the environment names them but never to this machine, redirects that
//! nobody follows, limits on time and size. And what messages quote.

use agentgym_text::{PRIVATE_AUTHORITY, without_secrets};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{Response, header::LOCATION, redirect::Policy};
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;
use url::{Host, Url};

/// Longest time for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A client builder for the server at `url`: the only place where one begins. On a machine without
/// certificates of authorities, as a small container is, it trusts no server over https, and speaks to
/// others as ever.
pub fn http_client(url: &str) -> reqwest::ClientBuilder {
    static HAS_AUTHORITIES: OnceLock<bool> = OnceLock::new();
    let has_authorities = HAS_AUTHORITIES.get_or_init(|| {
        // An error means that the process already has a provider, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tried = reqwest::Client::builder().build();
        if let Err(error) = &tried {
            let why = causes(error);
            tracing::warn!("no server is trusted over https ({why}): install ca-certificates");
        }
        tried.is_ok()
    });
    let builder = match has_authorities {
        true => reqwest::Client::builder(),
        false => reqwest::Client::builder().tls_certs_only([]),
    };
    // A key or an episode must not be sent to whoever a server names.
    let builder = builder
        .redirect(Policy::none())
        .connect_timeout(CONNECT_MAX);
    match is_this_machine(url) {
        true => builder.no_proxy(),
        false => builder,
    }
}

/// Whether an address is this machine's own, which a proxy would take for its own.
fn is_this_machine(url: &str) -> bool {
    let parsed = Url::parse(url).ok();
    match parsed.as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback() || ip.is_unspecified(),
        Some(Host::Ipv6(ip)) => ip.to_canonical().is_loopback() || ip.is_unspecified(),
        None => false,
    }
}

/// A proxy that the process's environment names.
#[derive(Debug)]
pub struct Proxy {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    variable: &'static str,
}

impl Proxy {
    /// The proxy that requests to `url` go through.
    pub fn to(url: &str) -> Option<Self> {
        let parsed = url.parse::<axum::http::Uri>().ok()?;
        if is_this_machine(url) {
            return None;
        }
        let proxy = Matcher::from_system().intercept(&parsed)?;
        let own = match parsed.scheme_str() {
            Some("https") => ["HTTPS_PROXY", "https_proxy"],
            _ => ["HTTP_PROXY", "http_proxy"],
        };
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let variable = own.into_iter().chain(["ALL_PROXY"]).find(is_set);
        Some(Self {
            host: proxy.uri().host()?.to_owned(),
            port: match (proxy.uri().port_u16(), proxy.uri().scheme_str()) {
                (Some(port), _) => port,
                (None, Some("https")) => 443,
                (None, _) => 80,
            },
            variable: variable.unwrap_or("all_proxy"),
        })
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            variable,
        } = self;
        write!(
            f,
            "through the proxy {host}:{port} of {variable}; NO_PROXY lists hosts to reach without it"
        )
    }
}

/// An address for messages: without secrets, with the proxy that requests to it go through.
pub fn shown(url: &str) -> String {
    let address = without_secrets(url);
    let address = address.trim_end_matches('/');
    match Proxy::to(url) {
        None => address.to_owned(),
        Some(proxy) => format!("{address} ({proxy})"),
    }
}

/// Where a reply redirects to.
pub fn redirected(response: &Response) -> Option<String> {
    let to = response.headers().get(LOCATION)?;
    let redirects = response.status().is_redirection();
    redirects.then(|| without_secrets(&excerpt(to.as_bytes())))
}

/// Why a body was not read.
#[derive(Debug)]
pub enum Unread {
    /// It has more bytes than are read.
    TooLarge,
    /// The connection failed.
    Failed(reqwest::Error),
}

/// The body of a reply, of up to `bytes_max`.
///
/// # Errors
/// A larger body, a connection that fails.
pub async fn body(response: &mut Response, bytes_max: usize) -> Result<Vec<u8>, Unread> {
    let announced = response.content_length();
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(Unread::TooLarge);
    }
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(Unread::Failed)? {
        if bytes.len() + piece.len() > bytes_max {
            return Err(Unread::TooLarge);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// How much of an unexpected body a message shows.
pub(crate) const EXCERPT_BYTES: usize = 200;

/// The innermost cause: the operating system's error, or what is wrong with a certificate.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let found = cause.to_string();
    match found.contains("UnknownIssuer") {
        true => format!("{found}: {PRIVATE_AUTHORITY}"),
        false => found,
    }
}

/// The beginning of a body, for a message.
pub fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT_BYTES)]);
    let text = text.trim();
    match text {
        "" => "an empty body".to_owned(),
        _ if bytes.len() > EXCERPT_BYTES => format!("{text}…"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_all_its_names() {
        for own in [
            "http://127.0.0.1:1/x",
            "http://127.9.9.9",
            "http://localhost:80",
            "https://a.localhost/",
            "http://[::1]:1",
            "http://[::ffff:127.0.0.1]:1",
            "http://0.0.0.0:1",
        ] {
            assert!(is_this_machine(own), "{own}");
        }
        for other in ["http://10.0.0.1", "http://localhost.example", "nonsense"] {
            assert!(!is_this_machine(other), "{other}");
        }
    }
}
