"use strict";
(function () {
  var made = document.getElementById("made");
  var hours = (Date.now() - Date.parse(made.dateTime)) / 36e5;
  if (hours >= 1) {
    var days = Math.floor(hours / 24);
    var old = document.getElementById("old");
    old.textContent = "Made " + (days >= 2 ? days + " days" : Math.floor(hours) + " h") + " ago: make it again for figures of now.";
    old.hidden = false;
  }

  document.querySelectorAll(".tools").forEach(function (tools) {
    var list = tools.parentNode.querySelector(".list");
    var rows = Array.from(list.children);
    var find = tools.querySelector("input");
    var by = tools.querySelector("select");
    var shown = tools.querySelector("output");
    tools.hidden = false;
    find.addEventListener("input", function () {
      var words = find.value.toLowerCase().split(/\s+/);
      var left = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        left += !row.hidden;
      });
      shown.textContent = find.value.trim() ? left + " of " + rows.length : "";
    });
    by.addEventListener("change", function () {
      var key = by.value;
      rows.map(function (row, number) { return [key ? Number(row.dataset[key]) : -number, number, row]; })
        .sort(function (one, other) { return other[0] - one[0] || one[1] - other[1]; })
        .forEach(function (each) { list.appendChild(each[2]); });
    });
  });

  function unfold() {
    var place = location.hash && document.getElementById(location.hash.slice(1));
    if (place && place.tagName === "DETAILS") { place.open = true; }
  }
  window.addEventListener("hashchange", unfold);
  unfold();

  var folded = [];
  window.addEventListener("beforeprint", function () {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (each) { each.open = true; });
  });
  window.addEventListener("afterprint", function () {
    folded.forEach(function (each) { each.open = false; });
  });
})();
