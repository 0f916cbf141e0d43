# Lets one set of sources build with colcon on a ROS distribution and with pip on the ROS wheels.
# On a distribution AMENT_PREFIX_PATH is set and no target has a missing include: nothing happens.

# The wheels make the Python environment itself the ament prefix; ask it where that is.
if(NOT DEFINED ENV{AMENT_PREFIX_PATH})
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import sys; print(sys.prefix)"
    OUTPUT_VARIABLE kinema4d_prefix
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  if(IS_DIRECTORY "${kinema4d_prefix}/share/ament_index")
    set(ENV{AMENT_PREFIX_PATH} "${kinema4d_prefix}")
    list(APPEND CMAKE_PREFIX_PATH "${kinema4d_prefix}")
    message(STATUS "ROS 2 wheels in ${kinema4d_prefix}")
  endif()
endif()

# The wheels' exported targets name the Python headers of the machine that built them; CMake
# refuses an include directory that does not exist, so those that are missing here are dropped.
function(kinema4d_drop_missing_includes)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(includes ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(includes)
      set(kept)
      foreach(dir IN LISTS includes)
        if(NOT IS_ABSOLUTE "${dir}" OR EXISTS "${dir}")
          list(APPEND kept "${dir}")
        endif()
      endforeach()
      set_property(TARGET ${target} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${kept}")
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL kinema4d_drop_missing_includes)
