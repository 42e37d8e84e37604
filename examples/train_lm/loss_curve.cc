// The loss curve as a self-contained SVG: no scripts, no external fonts, readable on light and dark pages.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "report.h"

namespace cake::train_lm {
namespace {

constexpr double kWidth = 800, kHeight = 440;
constexpr double kLeft = 70, kRight = 24, kTop = 48, kBottom = 56;
constexpr double kUniformBytes = 5.545177444479562;  // ln 256

/// 1, 2 or 5 times a power of ten, such that `range` holds at most `most` steps of it.
double nice_step(double range, int most) {
  double step = 1e-6;
  const double factors[3] = {2.0, 2.5, 2.0};
  for (int i = 0; range / step > most; ++i) step *= factors[i % 3];
  return step;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

/// Maps steps and losses to the drawing.
struct Frame {
  double steps, low, high;
  double x(double step) const { return kLeft + (kWidth - kLeft - kRight) * (step / steps); }
  double y(double loss) const { return kTop + (kHeight - kTop - kBottom) * ((high - loss) / (high - low)); }
};

template <class Values>
std::string polyline(const Frame& frame, const Values& values, const char* style) {
  std::string out = "<polyline fill=\"none\" ";
  out += style;
  out += " points=\"";
  for (std::size_t i = 0; i < values.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{:.2f},{:.2f} ", frame.x(static_cast<double>(i + 1)),
                   frame.y(std::clamp(values[i], frame.low, frame.high)));
  }
  return out + "\"/>\n";
}

void draw_axes(std::string& svg, const Frame& frame) {
  const auto add = std::back_inserter(svg);
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  const double dy = nice_step(frame.high - frame.low, 8), dx = std::max(1.0, nice_step(frame.steps, 10));
  for (int i = 0; frame.low + i * dy <= frame.high + 1e-9; ++i) {
    const double loss = frame.low + i * dy, y = frame.y(loss);
    fmt::format_to(add, "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", kLeft,
                   right, y, y);
    fmt::format_to(add, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n", kLeft - 8, y + 4, loss);
  }
  for (int i = 0; i * dx <= frame.steps + 1e-9; ++i) {
    const double x = frame.x(i * dx);
    fmt::format_to(add, "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#444444\"/>\n", x, x,
                   bottom, bottom + 5);
    fmt::format_to(add, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.6g}</text>\n", x, bottom + 20,
                   i * dx);
  }
  fmt::format_to(add, "<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#444444\"/>\n", kLeft, kTop,
                 bottom, right);
  fmt::format_to(add, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">step</text>\n", (kLeft + right) / 2,
                 kHeight - 12);
  fmt::format_to(add,
                 "<text transform=\"translate(20 {:.1f}) rotate(-90)\" text-anchor=\"middle\">"
                 "cross-entropy (nats per byte)</text>\n",
                 (kTop + bottom) / 2);
}

}  // namespace

std::string loss_curve_svg(const std::vector<StepRecord>& history, const std::string& title) {
  std::vector<double> losses, means;
  for (const StepRecord& r : history) losses.push_back(r.loss);
  const std::size_t window = std::max<std::size_t>(1, (losses.size() + 19) / 20);
  double sum = 0.0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i];
    if (i >= window) sum -= losses[i - window];
    means.push_back(sum / static_cast<double>(std::min(i + 1, window)));
  }
  double low = 0.0, high = kUniformBytes;
  for (const double loss : losses) high = std::max(high, loss);
  const double unit = nice_step(high - low, 8);
  double top = 0.0;
  while (top < high + 0.2 * unit) top += unit;
  const Frame frame{std::max(1.0, static_cast<double>(losses.size())), low, top};

  std::string svg;
  const auto add = std::back_inserter(svg);
  fmt::format_to(add,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
                 "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\" role=\"img\">\n<title>{2}</title>\n"
                 "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
                 "<text x=\"{3}\" y=\"28\" font-size=\"16\">{2}</text>\n",
                 kWidth, kHeight, escaped(title), kLeft);
  draw_axes(svg, frame);
  const double uniform = frame.y(kUniformBytes);
  fmt::format_to(add,
                 "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#888888\" "
                 "stroke-dasharray=\"5 4\"/>\n<text x=\"{1:.1f}\" y=\"{3:.1f}\" text-anchor=\"end\" fill=\"#666666\">"
                 "uniform bytes, 5.55</text>\n",
                 kLeft, kWidth - kRight, uniform, uniform - 5);
  if (!losses.empty()) {
    svg += polyline(frame, losses, "stroke=\"#9ecae1\" stroke-width=\"1\"");
    svg += polyline(frame, means, "stroke=\"#08519c\" stroke-width=\"2\" stroke-linejoin=\"round\"");
    const double x = frame.x(static_cast<double>(means.size())), y = frame.y(std::clamp(means.back(), low, top));
    fmt::format_to(add, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"#08519c\"/>\n", x, y);
    fmt::format_to(add, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#08519c\">{:.3f}</text>\n", x - 4,
                   y - 10, means.back());
    fmt::format_to(add,
                   "<g transform=\"translate({:.1f} {:.1f})\"><line x2=\"24\" stroke=\"#9ecae1\"/>"
                   "<text x=\"30\" y=\"4\">each step</text><line x2=\"24\" y1=\"20\" y2=\"20\" stroke=\"#08519c\" "
                   "stroke-width=\"2\"/><text x=\"30\" y=\"24\">mean of the last {} steps</text></g>\n",
                   kWidth - kRight - 220, kTop + 60, window);
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace cake::train_lm
