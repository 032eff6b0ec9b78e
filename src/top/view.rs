//! Draws the state.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Tabs};

use super::state::{TopNode, TopSizes, TopState};

/// Width of a bar.
const BAR: usize = 10;
/// Width of a column with a bar and its value.
const SHARE: Constraint = Constraint::Length(16);
/// Heights of a histogram's columns.
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const TITLES: [&str; 6] = ["1 nodes", "2 queue", "3 gangs", "4 quotas", "5 agents", "6 sizes"];
const KEYS: &str = "q quits · 1-6, Tab: view · ↑ ↓: lines · c: cpu, memory, pods, devices";

/// What is shown of the state.
#[derive(Debug, Clone, Copy, Default)]
pub struct TopScreen {
    tab: usize,
    /// Lines of the list that are above the window.
    above: usize,
    measure: usize,
    is_plain: bool,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopKey {
    Tab(usize),
    NextTab,
    PreviousTab,
    Down(usize),
    Up(usize),
    NextMeasure,
}

/// A resource by which nodes are compared.
struct Measure {
    name: &'static str,
    /// In permille.
    of: fn(&TopNode) -> i64,
}

const MEASURES: [Measure; 4] = [
    Measure { name: "cpu", of: |node| node.usage.cpu },
    Measure { name: "memory", of: |node| node.usage.memory },
    Measure { name: "pods", of: |node| node.usage.pods },
    Measure { name: "devices", of: |node| node.usage.extended.max(0) },
];

impl TopScreen {
    /// `is_plain`: without colours.
    pub fn new(is_plain: bool) -> Self {
        TopScreen { is_plain, ..TopScreen::default() }
    }

    pub fn press(&mut self, key: TopKey) {
        match key {
            TopKey::Tab(tab) => (self.tab, self.above) = (tab.min(TITLES.len() - 1), 0),
            TopKey::NextTab => self.press(TopKey::Tab((self.tab + 1) % TITLES.len())),
            TopKey::PreviousTab => self.press(TopKey::Tab((self.tab + TITLES.len() - 1) % TITLES.len())),
            TopKey::Down(lines) => self.above = self.above.saturating_add(lines),
            TopKey::Up(lines) => self.above = self.above.saturating_sub(lines),
            TopKey::NextMeasure => self.measure = (self.measure + 1) % MEASURES.len(),
        }
    }

    fn colour(&self, colour: Color) -> Style {
        if self.is_plain { Style::new() } else { Style::new().fg(colour) }
    }

    /// Colours a share in permille.
    fn heat(&self, permille: i64) -> Style {
        self.colour(match permille {
            ..=600 => Color::Green,
            601..=850 => Color::Yellow,
            _ => Color::Red,
        })
    }
}

/// Draws the state. `now`: milliseconds since 1970. Lines that were scrolled away come back where there are fewer.
pub fn draw(frame: &mut Frame, state: &TopState, screen: &mut TopScreen, now: i64) {
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, tabs, body, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(state, screen)), head);
    frame.render_widget(Tabs::new(TITLES).select(screen.tab), tabs);
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().add_modifier(Modifier::DIM)), foot);
    if !state.is_complete() {
        frame.render_widget(Paragraph::new("waiting for the first look at the cluster…"), body);
        return;
    }
    match screen.tab {
        0 => nodes(frame, body, state, screen),
        1 => queue(frame, body, state, screen, now),
        2 => gangs(frame, body, state, screen),
        3 => quotas(frame, body, state, screen),
        4 => agents(frame, body, state, screen),
        _ => sizes(frame, body, state, screen),
    }
}

fn summary(state: &TopState, screen: &TopScreen) -> Vec<Line<'static>> {
    let totals = &state.totals;
    let role = if totals.leading { "leads" } else { "does not lead" };
    let binds = state.binds_per_second.map_or(String::new(), |binds| format!(" · {binds:.0} binds/s"));
    let lists = totals.list_hits + totals.list_misses;
    let hits = match lists {
        0 => String::new(),
        lists => format!(" · list hits {:.1} %", 100.0 * totals.list_hits as f64 / lists as f64),
    };
    let first = format!(
        "berth {} {role} · {} nodes · {} pods bound · {} wait · {} classes{binds}",
        state.version, totals.nodes, totals.pods, totals.waiting, totals.classes
    );
    let queues: Vec<_> = state.queues().filter(|(_, pods)| *pods > 0).collect();
    let queues = queues.iter().map(|(queue, pods)| format!("{queue} {pods}"));
    let queues = queues.collect::<Vec<_>>().join(", ");
    let second = format!(
        "queues: {}{hits} · conflicts {} · preemptions {}",
        if queues.is_empty() { "empty" } else { &queues },
        totals.conflicts,
        totals.preemptions
    );
    let style = if totals.leading { Style::new() } else { screen.colour(Color::Yellow) };
    vec![Line::styled(first, style.add_modifier(Modifier::BOLD)), Line::raw(second)]
}

/// Nodes of one zone and pool.
#[derive(Default)]
struct Pool {
    count: usize,
    unavailable: usize,
    /// Sums of permille by measure.
    sums: [i64; MEASURES.len()],
    /// Nodes by tenth of the chosen measure.
    tenths: [usize; 10],
}

fn nodes(frame: &mut Frame, area: Rect, state: &TopState, screen: &mut TopScreen) {
    let measure = &MEASURES[screen.measure];
    let mut pools: BTreeMap<(&str, &str), Pool> = BTreeMap::new();
    for node in state.nodes.values() {
        let pool = pools.entry((&node.zone, &node.pool)).or_default();
        pool.count += 1;
        pool.unavailable += usize::from(node.cordoned || !node.ready);
        for (sum, measure) in pool.sums.iter_mut().zip(&MEASURES) {
            *sum += (measure.of)(node);
        }
        pool.tenths[((measure.of)(node) / 100).clamp(0, 9) as usize] += 1;
    }
    let rows = pools.iter().map(|((zone, pool), nodes)| {
        let mean = |at: usize| nodes.sums[at] / nodes.count.max(1) as i64;
        Row::new([
            Cell::new(or_dash(zone)),
            Cell::new(or_dash(pool)),
            Cell::new(nodes.count.to_string()),
            Cell::new(share(mean(0), screen)),
            Cell::new(share(mean(1), screen)),
            Cell::new(share(mean(2), screen)),
            Cell::new(histogram(&nodes.tenths)),
            Cell::new(if nodes.unavailable > 0 { nodes.unavailable.to_string() } else { String::new() }),
        ])
    });
    let most = (pools.len() as u16 + 1).min(area.height / 2).max(2);
    let [above, below] = Layout::vertical([Constraint::Length(most), Constraint::Min(1)]).areas(area);
    let spread = format!("{} 0-100 %", measure.name);
    let columns = [
        ("zone", Constraint::Fill(2)),
        ("pool", Constraint::Fill(2)),
        ("nodes", Constraint::Length(6)),
        ("cpu", SHARE),
        ("memory", SHARE),
        ("pods", SHARE),
        (&spread, Constraint::Length(14)),
        ("unavailable", Constraint::Length(11)),
    ];
    frame.render_widget(table(columns, rows), above);

    let mut fullest: Vec<_> = state.nodes.values().collect();
    fullest.sort_by(|a, b| (measure.of)(b).cmp(&(measure.of)(a)).then_with(|| a.name.cmp(&b.name)));
    let rows = fullest.into_iter().map(|node| {
        let mut notes = Vec::new();
        if !node.ready {
            notes.push("not ready".to_owned());
        }
        if node.cordoned {
            notes.push("cordoned".to_owned());
        }
        if node.usage.reserved > 0 {
            notes.push(format!("{} reserved", percent(node.usage.reserved)));
        }
        Row::new([
            Cell::new(node.name.clone()),
            Cell::new(share(node.usage.cpu, screen)),
            Cell::new(share(node.usage.memory, screen)),
            Cell::new(share(node.usage.pods, screen)),
            match node.usage.extended {
                ..0 => Cell::new("-"),
                there => Cell::new(share(there, screen)),
            },
            Cell::new(notes.join(", ")),
        ])
    });
    let columns = [
        ("fullest nodes", Constraint::Fill(3)),
        ("cpu", SHARE),
        ("memory", SHARE),
        ("pods", SHARE),
        ("devices", SHARE),
        ("", Constraint::Fill(2)),
    ];
    listed(frame, below, screen, columns, rows.collect(), "");
}

fn queue(frame: &mut Frame, area: Rect, state: &TopState, screen: &mut TopScreen, now: i64) {
    let left_out = left_out(state.queue.left_out, "groups of pods");
    let rows = state.queue.groups.iter().map(|group| {
        let who = group.owner.clone().unwrap_or_else(|| group.pod.clone());
        Row::new([
            age(now - group.since),
            format!("{}/{who}", group.namespace),
            group.pods.to_string(),
            group.priority.to_string(),
            group.state.clone(),
            group.message.clone().unwrap_or_default(),
        ])
    });
    let columns = [
        ("since", Constraint::Length(5)),
        ("pods of", Constraint::Fill(2)),
        ("pods", Constraint::Length(6)),
        ("priority", Constraint::Length(10)),
        ("state", Constraint::Length(12)),
        ("why", Constraint::Fill(4)),
    ];
    listed(frame, area, screen, columns, rows.collect(), &left_out);
}

fn gangs(frame: &mut Frame, area: Rect, state: &TopState, screen: &mut TopScreen) {
    let left_out = left_out(state.gangs.left_out, "gangs");
    let rows = state.gangs.gangs.iter().map(|gang| {
        Row::new([
            format!("{}/{}", gang.namespace, gang.name),
            gang.phase.clone(),
            gang.bound.to_string(),
            gang.members.to_string(),
            gang.minimum.to_string(),
            gang.message.clone(),
        ])
    });
    let columns = [
        ("gang", Constraint::Fill(2)),
        ("phase", Constraint::Length(14)),
        ("bound", Constraint::Length(6)),
        ("members", Constraint::Length(8)),
        ("minimum", Constraint::Length(8)),
        ("message", Constraint::Fill(4)),
    ];
    listed(frame, area, screen, columns, rows.collect(), &left_out);
}

fn quotas(frame: &mut Frame, area: Rect, state: &TopState, screen: &mut TopScreen) {
    let mut rows = Vec::new();
    for quota in &state.quotas {
        for (at, resource) in quota.resources.iter().enumerate() {
            let first = |text: String| if at == 0 { text } else { String::new() };
            rows.push(Row::new([
                first(quota.name.clone()),
                first(quota.waiting.to_string()),
                first(quota.reclaimed.to_string()),
                resource.resource.clone(),
                resource.used.clone(),
                resource.borrowed.clone(),
                resource.guaranteed.clone().unwrap_or_else(|| "-".to_owned()),
                resource.maximum.clone().unwrap_or_else(|| "-".to_owned()),
            ]));
        }
    }
    let columns = [
        ("quota", Constraint::Fill(2)),
        ("waiting", Constraint::Length(8)),
        ("reclaimed", Constraint::Length(10)),
        ("resource", Constraint::Fill(1)),
        ("used", Constraint::Length(12)),
        ("borrowed", Constraint::Length(12)),
        ("guaranteed", Constraint::Length(12)),
        ("maximum", Constraint::Length(12)),
    ];
    listed(frame, area, screen, columns, rows, "");
}

fn agents(frame: &mut Frame, area: Rect, state: &TopState, screen: &mut TopScreen) {
    let all: u64 = state.agents.iter().map(|agent| agent.dispatched).sum();
    let rows = state.agents.iter().enumerate().map(|(at, agent)| {
        let part = (agent.dispatched * 1_000).checked_div(all).unwrap_or_default();
        Row::new([
            Cell::new(at.to_string()),
            Cell::new(agent.dispatched.to_string()),
            Cell::new(share(part as i64, screen).style(Style::new())),
            Cell::new(agent.lists.to_string()),
            Cell::new(format!("{:.1} MiB", agent.bytes as f64 / f64::from(1 << 20))),
            Cell::new(agent.evictions.to_string()),
        ])
    });
    let columns = [
        ("agent", Constraint::Length(6)),
        ("requests", Constraint::Length(14)),
        ("share", SHARE),
        ("lists", Constraint::Length(8)),
        ("caches", Constraint::Length(12)),
        ("evictions", Constraint::Fill(1)),
    ];
    listed(frame, area, screen, columns, rows.collect(), "");
}

/// Draws the workloads that request more than is recommended.
fn sizes(frame: &mut Frame, area: Rect, state: &TopState, screen: &mut TopScreen) {
    let Some(known) = &state.recommendations else {
        let why = "none: the recommender is off, has not made a round yet, or another process leads";
        frame.render_widget(Paragraph::new(why), area);
        return;
    };
    let cores = |milli: i64| format!("{:.2}", milli as f64 / 1_000.0);
    let gib = |bytes: i64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
    let rows = known.largest.iter().map(|workload| {
        let TopSizes { cpu_milli, memory } = workload.sizes;
        Row::new([
            format!("{}/{} {}", workload.namespace, workload.kind, workload.name),
            workload.pods.to_string(),
            cores(cpu_milli[0]),
            cores(cpu_milli[1]),
            gib(memory[0]),
            gib(memory[1]),
        ])
    });
    let columns = [
        ("requests too much", Constraint::Fill(3)),
        ("pods", Constraint::Length(6)),
        ("cores", Constraint::Length(10)),
        ("recommended", Constraint::Length(12)),
        ("GiB", Constraint::Length(10)),
        ("recommended", Constraint::Length(12)),
    ];
    let TopSizes { cpu_milli, memory } = known.sizes;
    let all = format!(
        "all {} workloads: {} cores requested, {} recommended; {} GiB requested, {} recommended",
        known.workloads,
        cores(cpu_milli[0]),
        cores(cpu_milli[1]),
        gib(memory[0]),
        gib(memory[1])
    );
    let note = match known.left_out {
        0 => all,
        count => format!("{all}; {}", left_out(count, "workloads")),
    };
    listed(frame, area, screen, columns, rows.collect(), &note);
}

/// Title and width.
type Column<'a> = (&'a str, Constraint);

/// Draws a table with the rows that fit below those that were scrolled away, and a note.
fn listed<'a, const N: usize>(
    frame: &mut Frame,
    area: Rect,
    screen: &mut TopScreen,
    columns: [Column<'a>; N],
    rows: Vec<Row<'a>>,
    note: &str,
) {
    let [list, below] =
        Layout::vertical([Constraint::Min(1), Constraint::Length(u16::from(!note.is_empty()))]).areas(area);
    if rows.is_empty() {
        frame.render_widget(Paragraph::new("none"), list);
        return;
    }
    let fit = usize::from(list.height.saturating_sub(1)).max(1);
    screen.above = screen.above.min(rows.len().saturating_sub(fit));
    let rows = rows.into_iter().skip(screen.above).take(fit);
    frame.render_widget(table(columns, rows), list);
    frame.render_widget(Paragraph::new(note), below);
}

fn table<'a, const N: usize>(columns: [Column<'a>; N], rows: impl Iterator<Item = Row<'a>>) -> Table<'a> {
    let header =
        Row::new(columns.map(|(title, _)| title)).style(Style::new().add_modifier(Modifier::UNDERLINED));
    Table::new(rows, columns.map(|(_, width)| width)).header(header)
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// A bar, and its value beside it: the colour says nothing else.
fn share(permille: i64, screen: &TopScreen) -> Line<'static> {
    let full = (permille.clamp(0, 1_000) as usize * BAR).div_ceil(1_000);
    let bar = format!("{}{}", "■".repeat(full), "·".repeat(BAR - full));
    Line::from(vec![
        Span::styled(bar, screen.heat(permille)),
        Span::raw(format!(" {:>4}", percent(permille))),
    ])
}

fn percent(permille: i64) -> String {
    format!("{}%", (permille + 5) / 10)
}

fn histogram(tenths: &[usize; 10]) -> String {
    let most = tenths.iter().copied().max().unwrap_or(0).max(1);
    tenths.iter().map(|count| HEIGHTS[(count * (HEIGHTS.len() - 1)).div_ceil(most)]).collect()
}

fn age(ms: i64) -> String {
    match ms.max(0) / 1_000 {
        seconds @ ..=99 => format!("{seconds}s"),
        seconds @ 100..=5_999 => format!("{}m", seconds / 60),
        seconds @ 6_000..=359_999 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn left_out(count: usize, what: &str) -> String {
    if count == 0 { String::new() } else { format!("and {count} more {what}") }
}
