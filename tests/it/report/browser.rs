//! A page in a real browser: its layout, console output and requests.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::support::{busy_turn, wait_for};

/// The browser and all its children are killed after this, even if the test hangs.
const TIME_MAX_S: &str = "90";
/// Minimum window width of the browser: narrower pages are shown in a frame.
const WINDOW_WIDTH_MIN: u32 = 500;

/// Screen of a visit.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

impl Screen {
    /// Returns the scale of pictures.
    fn zoom(self) -> f64 {
        f64::from(self.width.max(WINDOW_WIDTH_MIN)) / f64::from(self.width)
    }
}

/// The browser's measurements of a page. Lengths are in CSS pixels.
#[derive(Debug, Deserialize)]
pub struct Measured {
    pub plots: Vec<Plot>,
    /// Resources that the page fetched.
    pub resources: Vec<String>,
    /// Widths of the page and of the window.
    pub page_width: f64,
    pub window_width: f64,
    pub page_height: f64,
    /// The smallest visible text as drawn, and its content.
    pub text_size_min: f64,
    pub text_smallest: String,
    pub dark: bool,
}

#[derive(Debug, Deserialize)]
pub struct Plot {
    pub id: String,
    /// For each visible drawing: width, height, and number of visible shapes.
    pub drawings: Vec<(f64, f64, u32)>,
}

#[derive(Debug)]
pub struct Visit {
    pub measured: Measured,
    /// Everything that the page or the browser wrote to the console: errors, warnings, violations.
    pub console: Vec<String>,
    pub picture: Vec<u8>,
}

/// Opens the page and waits until it has loaded.
pub fn visit(page: &str, screen: Screen) -> Visit {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [html, picture] = ["page.html", "page.png"].map(|name| folder.path().join(name));
    let measuring =
        page.replacen("</body>", &format!("<script>{}</script></body>", include_str!("measure.js")), 1);
    assert_ne!(measuring, page, "the page has an end");
    let shown = if screen.width < WINDOW_WIDTH_MIN { framed(&measuring, screen) } else { measuring };
    std::fs::write(&html, shown).expect("the page is written");
    let _busy = wait_for(busy_turn());
    let output = chromium(screen, folder.path())
        .arg(format!("--screenshot={}", picture.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", html.display()))
        .output()
        .expect("`timeout` of coreutils runs");
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "chromium failed: {}\n{log}", output.status);
    let json = dom
        .split_once("<pre id=\"measured\" hidden=\"\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .unwrap_or_else(|| panic!("the page was not measured:\n{log}"))
        .0;
    let json = json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Visit {
        measured: serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}")),
        console: log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect(),
        picture: std::fs::read(&picture).expect("chromium took a picture"),
    }
}

/// Adds the options of a browser without a window, a network of its own, or traces outside this folder.
pub fn isolate(command: &mut Command, profile: &Path) {
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"])
        .arg("--disable-sync")
        .arg(format!("--user-data-dir={}", profile.join("profile").display()))
        // Settings and caches outside the profile are also written there.
        .env("HOME", profile)
        .env("XDG_CONFIG_HOME", profile)
        .env("XDG_CACHE_HOME", profile);
}

fn chromium(screen: Screen, profile: &Path) -> Command {
    let enlarged = |length: u32| (f64::from(length) * screen.zoom()).round() as u32;
    let mut command = Command::new("timeout");
    command
        .args([
            "--kill-after=5",
            TIME_MAX_S,
            "chromium",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
        ])
        .arg(format!("--window-size={},{}", enlarged(screen.width), enlarged(screen.height)));
    isolate(&mut command, profile);
    if screen.dark {
        command.arg("--force-dark-mode");
    }
    command
}

/// Returns the page in a frame of the screen's size, which is the page's window. For the picture, the frame is
/// enlarged to the real window.
fn framed(page: &str, screen: Screen) -> String {
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    let Screen { width, height, .. } = screen;
    let zoom = screen.zoom();
    format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
         <body style=\"margin:0\"><iframe style=\"border:0;transform-origin:0 0;transform:scale({zoom})\" width=\"{width}\" height=\"{height}\" \
         srcdoc=\"{page}\"></iframe></body>"
    )
}
