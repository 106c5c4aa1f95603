//! The API of a server that a test has started, in plain requests.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::Place;

/// A server's API, with the token that it left in its directory.
pub(crate) struct Api {
    address: String,
    token: String,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Api {
    /// Of the server whose directory is `data`.
    pub(crate) fn of(place: &Place) -> Self {
        let file = fs::read_to_string(place.path("data/client.json")).unwrap();
        let file: Value = serde_json::from_str(&file).unwrap();
        let url = file["url"].as_str().unwrap();
        Self {
            address: url.trim_start_matches("http://").to_owned(),
            token: file["token"].as_str().unwrap().to_owned(),
        }
    }

    /// `headers` are whole lines: `If-Match: "7"`.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\
             Authorization: Bearer {}\r\nContent-Length: {}\r\n",
            self.token,
            body.len()
        );
        for line in headers {
            head.push_str(line);
            head.push_str("\r\n");
        }
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{head}\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap();
        Answer {
            status: status.parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        self.ask("GET", path, &[], "").expect(200)
    }

    /// All runs of a job that the server has, newest first.
    pub(crate) fn runs(&self, job: &str, query: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut more = String::new();
        loop {
            let path = format!("/v1/jobs/{job}/runs?limit=500{query}{more}");
            let page = self.get(&path);
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(cursor) => more = format!("&cursor={cursor}"),
                None => return all,
            }
        }
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The value of a header, if it is there.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}
