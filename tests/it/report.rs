//! The simulation's HTML report in a real browser (Debian's `chromium`, headless). `BERTH_SCREENSHOTS=DIR` keeps its
//! screenshots there.

pub mod browser;
mod made_up;

use std::path::PathBuf;

use berth_simulator::render;
use browser::{Screen, Visit, visit};

pub const DESKTOP: Screen = Screen { width: 1280, height: 900, dark: false };
pub const PHONE: Screen = Screen { width: 390, height: 844, dark: false };
const PLOTS: [&str; 8] = [
    "plot-cdf",
    "plot-latency",
    "plot-hits",
    "plot-memory",
    "plot-bursts",
    "plot-agents",
    "plot-load",
    "plot-slots",
];
/// CSS pixels; below this, text is not readable on a phone.
pub const TEXT_SIZE_MIN: f64 = 11.0;

/// Checks the report's requirements for any screen.
fn check(seen: &Visit, screen: Screen) {
    let measured = &seen.measured;
    assert_eq!(seen.console, [""; 0], "on {screen:?}");
    assert_eq!(measured.resources, [""; 0], "on {screen:?}");
    assert_eq!(measured.dark, screen.dark);
    assert_eq!(measured.window_width, f64::from(screen.width));
    assert!(measured.page_width <= measured.window_width, "wider than {screen:?}: {}", measured.page_width);
    assert!(
        measured.text_size_min >= TEXT_SIZE_MIN,
        "{:?} has {} px on {screen:?}",
        measured.text_smallest,
        measured.text_size_min
    );
    let ids: Vec<_> = measured.plots.iter().map(|plot| plot.id.as_str()).collect();
    assert_eq!(ids, PLOTS, "on {screen:?}");
    for plot in &measured.plots {
        assert!(!plot.drawings.is_empty(), "{} shows no drawing on {screen:?}", plot.id);
        for (width, height, shapes) in &plot.drawings {
            assert!(*width > 100.0 && *height > 80.0, "{} is {width} by {height} on {screen:?}", plot.id);
            assert!(*shapes >= 8, "{} draws {shapes} shapes for 8 dispatchers on {screen:?}", plot.id);
        }
    }
}

/// Returns width and height from the PNG header.
fn png_size(picture: &[u8]) -> (u32, u32) {
    assert_eq!(picture.get(..8), Some(&b"\x89PNG\r\n\x1a\n"[..]), "a PNG");
    let number = |at| u32::from_be_bytes(picture[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

/// Takes a picture of the whole page, at any screen height.
fn whole_picture(page: &str, seen: &Visit, screen: Screen, name: &str) {
    let height = seen.measured.page_height as u32;
    let whole = visit(page, Screen { height, ..screen });
    let (_, seen_height) = png_size(&whole.picture);
    assert!(seen_height >= height, "{seen_height} of {height} px");
    assert!(whole.picture.len() > 50_000, "a picture of {} bytes shows nothing", whole.picture.len());
    if let Some(folder) = std::env::var_os("BERTH_SCREENSHOTS").map(PathBuf::from) {
        std::fs::create_dir_all(&folder).expect("BERTH_SCREENSHOTS is a folder that can be written");
        std::fs::write(folder.join(format!("report-{name}.png")), &whole.picture)
            .expect("the picture is written");
    }
}

fn holds_on(screen: Screen, name: &str) {
    let page = render(&made_up::report());
    let seen = visit(&page, screen);
    check(&seen, screen);
    whole_picture(&page, &seen, screen, name);
}

#[test]
fn the_report_is_whole_on_a_desktop() {
    needs!("chromium");
    holds_on(DESKTOP, "desktop");
}

#[test]
fn the_report_is_whole_on_a_phone() {
    needs!("chromium");
    holds_on(PHONE, "phone");
}

#[test]
fn the_report_is_whole_in_the_dark() {
    needs!("chromium");
    holds_on(Screen { dark: true, ..DESKTOP }, "desktop-dark");
    holds_on(Screen { dark: true, ..PHONE }, "phone-dark");
}

/// At each breakpoint for another column, text in plots is smallest.
#[test]
fn plots_are_readable_where_their_columns_are_narrowest() {
    needs!("chromium");
    let page = render(&made_up::report());
    for width in [840, 1200] {
        let screen = Screen { width, ..DESKTOP };
        check(&visit(&page, screen), screen);
    }
}

#[test]
fn long_names_and_many_dispatchers_do_not_widen_the_page() {
    needs!("chromium");
    let mut report = made_up::report();
    let long = "a-dispatcher-whose-name-has-no-end-and-no-spaces-".repeat(4);
    let more: Vec<_> = (0..40)
        .map(|at| {
            let mut outcome = report.outcomes[at % 8].clone();
            outcome.figures.dispatcher = format!("{long}{at}");
            outcome
        })
        .collect();
    report.outcomes.extend(more);
    report.title.clone_from(&long);
    report.command = long.repeat(4);
    report.notes.push(long.clone());
    report.compared[0].ours.clone_from(&long);
    report.setup[0].1 = long;
    for screen in [PHONE, DESKTOP] {
        let seen = visit(&render(&report), screen);
        check(&seen, screen);
    }
}

#[test]
fn the_page_names_nothing_to_fetch() {
    let page = render(&made_up::report());
    for what in ["http:", "https:", "//fonts", "@import", "url(", "src="] {
        assert!(!page.contains(what), "{what}");
    }
}

/// Checks that the checks above detect their errors.
#[test]
fn errors_and_requests_of_a_page_are_detected() {
    needs!("chromium");
    let page = render(&made_up::report());
    let with = |what: &str| page.replacen("</main>", &format!("{what}</main>"), 1);
    let wrong = "<script>console.error(\"an error\"); console.warn(\"a warning\")</script>\
                 <script>not.there()</script><img src=\"http://127.0.0.1:9/picture.png\">";
    for screen in [DESKTOP, PHONE] {
        let console = visit(&with(wrong), screen).console;
        for expected in ["an error", "a warning", "not is not defined", "Content Security Policy"] {
            assert!(console.iter().any(|line| line.contains(expected)), "{expected:?} not in {console:?}");
        }
    }
    let wide =
        visit(&with("<div style=\"width:500px\">wide</div><p style=\"font-size:9px\">small</p>"), PHONE);
    assert!(wide.measured.page_width > wide.measured.window_width && wide.measured.text_size_min == 9.0);
}

/// Errors here are written to the console.
#[test]
fn a_legend_hides_a_dispatcher_everywhere_and_a_pointer_shows_values() {
    needs!("chromium");
    let script = "
        const say = (right, what) => { if (!right) console.error(what); };
        const all = [...document.querySelectorAll('figure [data-d=\"2\"]')];
        const off = () => all.filter((each) => each.classList.contains('off')).length;
        const key = document.querySelector('#plot-load li[data-d=\"2\"]');
        key.click();
        say(all.length > 10 && off() === all.length, `${off()} of ${all.length} hidden`);
        key.click();
        say(off() === 0, 'still hidden');
        const svg = document.querySelector('#plot-load svg.lines');
        svg.scrollIntoView();
        const box = svg.getBoundingClientRect();
        const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
        svg.dispatchEvent(new PointerEvent('pointermove', at));
        const tip = document.getElementById('tip');
        const rows = tip.querySelectorAll('div').length;
        say(!tip.hidden && rows === 9, `${rows} rows`);
        say(/protean\\d+ ms/.test(tip.textContent), tip.textContent);
        const place = tip.getBoundingClientRect();
        say(place.left >= 0 && place.right <= innerWidth && place.bottom <= innerHeight, 'outside');
        svg.dispatchEvent(new PointerEvent('pointerleave'));
        say(tip.hidden, 'the values stay');";
    let page =
        render(&made_up::report()).replacen("</body>", &format!("<script>{{{script}}}</script></body>"), 1);
    for screen in [DESKTOP, PHONE] {
        check(&visit(&page, screen), screen);
    }
}

#[test]
fn the_page_that_berth_simulate_writes_has_its_plots() {
    needs!("chromium");
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let path = file.path().to_str().expect("UTF-8");
    let ran = crate::simulate::simulate(["--requests", "1500", "--types", "40", "--report", path]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let page = std::fs::read_to_string(file.path()).expect("the page was written");
    for screen in [DESKTOP, PHONE] {
        let seen = visit(&page, screen);
        assert_eq!(seen.console, [""; 0], "on {screen:?}");
        assert_eq!(seen.measured.resources, [""; 0], "on {screen:?}");
        assert!(seen.measured.page_width <= seen.measured.window_width, "wider than {screen:?}");
        let ids: Vec<_> = seen.measured.plots.iter().map(|plot| plot.id.as_str()).collect();
        assert_eq!(ids, PLOTS, "on {screen:?}");
        let drawn =
            |(width, height, shapes): &(f64, f64, _)| *width > 100.0 && *height > 80.0 && *shapes >= 4;
        for plot in &seen.measured.plots {
            assert!(
                !plot.drawings.is_empty() && plot.drawings.iter().all(drawn),
                "{} on {screen:?}",
                plot.id
            );
        }
    }
    for figure in ["42 %", "50 %", "0.950", "0.77"] {
        assert!(page.contains(figure), "the paper's {figure} is shown next to ours");
    }
}
