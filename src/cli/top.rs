//! `berth top`: a running `berth run` in a terminal.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use reqwest::{Response, Url};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::cluster::ClusterOptions;
use super::failure::Failure;
use super::output::width;
use super::reading::runtime;
use super::server::{ServerAccess, ServerClient};
use super::ui::refused;
use crate::top::{EventReader, TopKey, TopScreen, TopState, draw};

const EXIT_CODES: &str = "Runs until q or Ctrl-C. Exit codes: 1 the process cannot be asked; 2 the options are invalid, or the output is no \
                          terminal.";
/// Pause before a lost connection is made again.
const PAUSE: Duration = Duration::from_secs(2);
/// Time in which `--once` expects a first look.
const FIRST_LOOK: Duration = Duration::from_secs(30);
/// Lines of `--once`.
const LINES: u16 = 40;
/// Lines of one page.
const PAGE: usize = 20;

/// Options of `berth top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct TopOptions {
    /// Address of the process: its healthAddress on this machine, such as http://127.0.0.1:10261, or its serving.address, such as
    /// https://127.0.0.1:10260 with `kubectl port-forward`. Default: the holder of the Lease in the cluster of the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub server: Option<Url>,
    #[command(flatten)]
    pub access: ServerAccess,
    #[command(flatten)]
    pub cluster: ClusterOptions,
    /// What is shown first.
    #[arg(long, value_name = "VIEW", default_value = "nodes")]
    pub view: TopView,
    /// Print one look as text and end.
    #[arg(long)]
    pub once: bool,
}

/// A view, in the order of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopView {
    Nodes,
    Queue,
    Gangs,
    Quotas,
    Agents,
    /// Workloads that request more than recommended.
    Sizes,
}

/// Exit codes: 0 it was ended by a key, 1 the process cannot be asked, 2 the options are invalid.
pub fn top(options: &TopOptions) -> ExitCode {
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn run(options: &TopOptions) -> Result<(), Failure> {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !options.once && !is_terminal {
        return Err(Failure::Input(anyhow!("the output is no terminal: --once prints one look as text")));
    }
    let mut screen = TopScreen::new(std::env::var_os("NO_COLOR").is_some());
    screen.press(TopKey::Tab(options.view as usize));
    runtime()?.block_on(async {
        let server = options.access.reach(options.server.as_ref(), &options.cluster, None).await?;
        let stream = open(&server).await?;
        match options.once {
            true => print_once(stream, &mut screen).await?,
            false => watch(&server, stream, screen).await?,
        }
        Ok(())
    })
}

/// Opens the stream of the page.
async fn open(server: &ServerClient) -> Result<Response> {
    let answer = server.get("/ui/stream", &[]).await?;
    let status = answer.status();
    match status.is_success() {
        true => Ok(answer),
        false => Err(refused(&server.name, status, &server.text(answer).await.unwrap_or_default())),
    }
}

/// What the stream has told so far.
#[derive(Default)]
struct Told {
    state: TopState,
    reader: EventReader,
}

impl Told {
    fn hear(&mut self, bytes: &[u8]) -> Result<()> {
        for (event, data) in self.reader.add(bytes).map_err(|error| anyhow!("the stream: {error}"))? {
            self.state.hear(&event, &data)?;
        }
        Ok(())
    }
}

async fn print_once(mut stream: Response, screen: &mut TopScreen) -> Result<()> {
    let mut told = Told::default();
    let first = async {
        while !told.state.is_complete() {
            let bytes = stream.chunk().await.context("the stream broke off")?;
            told.hear(&bytes.ok_or_else(|| anyhow!("the stream ended"))?)?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(FIRST_LOOK, first).await.context("the process told nothing in time")??;
    let columns = u16::try_from(width()).unwrap_or(u16::MAX);
    let mut terminal = Terminal::new(TestBackend::new(columns, LINES)).map_err(|error| anyhow!("{error}"))?;
    let now = told.state.totals.at;
    terminal.draw(|frame| draw(frame, &told.state, screen, now)).map_err(|error| anyhow!("{error}"))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(columns)) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    // The last line is about keys.
    let text = text.trim_end().rsplit_once('\n').map_or("", |(text, _)| text.trim_end());
    writeln!(io::stdout(), "{text}").context("the output")
}

async fn watch(server: &ServerClient, stream: Response, mut screen: TopScreen) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let (to, mut keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if to.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let ended = async {
        let (mut told, mut stream) = (Told::default(), Some(stream));
        loop {
            let now = jiff::Timestamp::now().as_millisecond();
            terminal.draw(|frame| draw(frame, &told.state, &mut screen, now)).context("the terminal")?;
            tokio::select! {
                key = keys.recv() => match key {
                    Some(event) if is_end(&event) => return Ok(()),
                    Some(event) => key_of(&event).into_iter().for_each(|key| screen.press(key)),
                    None => return Err(anyhow!("the terminal cannot be read")),
                },
                news = next(server, &mut stream) => match news {
                    Some(bytes) => told.hear(&bytes)?,
                    None => told = Told::default(),
                },
                _ = terminate.recv() => return Ok(()),
            }
        }
    };
    let ended = ended.await;
    ratatui::restore();
    ended
}

/// Returns the next bytes; `None`: the stream ended or broke off. Then the next call opens it again.
async fn next(server: &ServerClient, stream: &mut Option<Response>) -> Option<Vec<u8>> {
    let Some(open) = stream else {
        tokio::time::sleep(PAUSE).await;
        *stream = open(server).await.ok();
        return Some(Vec::new());
    };
    let bytes = open.chunk().await.ok().flatten();
    if bytes.is_none() {
        *stream = None;
    }
    bytes.map(Vec::from)
}

fn is_end(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, .. }) = event else { return false };
    matches!(code, KeyCode::Char('q') | KeyCode::Esc)
        || *code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL)
}

fn key_of(event: &Event) -> Option<TopKey> {
    let Event::Key(KeyEvent { code, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
        return None;
    };
    Some(match code {
        KeyCode::Char(digit @ '1'..='6') => TopKey::Tab(*digit as usize - '1' as usize),
        KeyCode::Tab | KeyCode::Right => TopKey::NextTab,
        KeyCode::BackTab | KeyCode::Left => TopKey::PreviousTab,
        KeyCode::Down | KeyCode::Char('j') => TopKey::Down(1),
        KeyCode::Up | KeyCode::Char('k') => TopKey::Up(1),
        KeyCode::PageDown => TopKey::Down(PAGE),
        KeyCode::PageUp => TopKey::Up(PAGE),
        KeyCode::Char('c') => TopKey::NextMeasure,
        _ => return None,
    })
}
